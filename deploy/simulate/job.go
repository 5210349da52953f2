package simulate

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Job is a training job to simulate.
type Job struct {
	Sizes []int64 // of the dataset's files, in the order of their names

	Nodes int
	Ranks int   // of each node
	Room  int64 // bytes for the dataset on each node; 0: enough

	Epochs   int
	Batch    int           // samples of a rank
	Step     time.Duration // one training step, without waiting for data
	Workers  int           // of each rank's DataLoader
	Prefetch int           // batches that each worker loads ahead (prefetch_factor)
	Decode   time.Duration // processor time of a worker for a sample
	Async    bool          // ranks do not wait for each other

	Source  Device
	Archive bool   // the source is a plain tar, staged in large reads
	Disk    Device // of each node
	Network Device // of each node, in each direction

	Chunk int // files of a chunk of ChunkShuffleSampler, and
	Group int // chunks that a rank shuffles together; 0: 64

	Ahead  int64 // bytes that a node prefetches by plan
	Copies int   // replicas of a file besides its owner's; 0: one on every node

	Seed uint64
}

// Device serves reads. A zero limit means no limit.
type Device struct {
	Latency   time.Duration // of a request
	Bandwidth int64         // bytes per second
	IOPS      int64         // requests per second
}

// Policy is a way to read the dataset.
type Policy string

// The policies.
const (
	Direct     Policy = "direct"
	StageFirst Policy = "stage-first"
	Overlap    Policy = "overlap"
	Plan       Policy = "plan"
	Locality   Policy = "locality"
	Replicas   Policy = "replicas"
	ChunkWise  Policy = "chunk-wise"
)

// Policies lists all policies, in the order of tables.
var Policies = []Policy{Direct, StageFirst, Overlap, Plan, Locality, Replicas, ChunkWise}

// About describes a policy.
func (p Policy) About() string {
	return map[Policy]string{
		Direct:     "every sample is read from the source",
		StageFirst: "training starts when the dataset is staged; no plan",
		Overlap:    "training reads while the dataset is staged; no plan",
		Plan:       "the same, prefetched in the order of the sampler (order=seed:S)",
		Locality:   "plan, and ranks take the samples that their node holds (LocalitySampler)",
		Replicas:   "plan, and files are copied to more nodes (replicas=)",
		ChunkWise:  "plan, and runs of neighbours are shuffled (ChunkShuffleSampler)",
	}[p]
}

// ParsePolicy returns the policy with this name.
func ParsePolicy(name string) (Policy, error) {
	if p := Policy(name); p.About() != "" {
		return p, nil
	}
	return "", fmt.Errorf("%q is not a policy: choose from %v", name, Policies)
}

// planned reports whether files are prefetched by plan.
func (p Policy) planned() bool { return p != Direct && p != StageFirst && p != Overlap }

const (
	maxNodes = 4096
	maxRanks = 64
	maxFiles = 20_000_000
	maxBatch = 1 << 16
	maxReads = 200_000_000 // samples in all simulated epochs
)

// Check refuses an invalid job; the error has every complaint.
func (j *Job) Check() error {
	var errs []error
	refuse := func(bad bool, format string, args ...any) {
		if bad {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	within := func(name string, v, least, most int) {
		refuse(v < least || v > most, "%s %d: give %d to %d", name, v, least, most)
	}
	within("files", len(j.Sizes), 1, maxFiles)
	within("nodes", j.Nodes, 1, maxNodes)
	within("ranks", j.Ranks, 1, maxRanks)
	within("epochs", j.Epochs, 1, 1_000_000)
	within("batch", j.Batch, 1, maxBatch)
	within("workers", j.Workers, 1, 1024)
	within("prefetch", j.Prefetch, 1, 1024)
	within("replicas", j.Copies, 0, maxNodes)
	within("chunk", j.Chunk, 0, maxFiles)
	within("group", j.Group, 0, maxFiles)
	if len(errs) == 0 {
		world := j.Nodes * j.Ranks
		refuse(len(j.Sizes) < world, "%d files for %d ranks: give more files, or fewer nodes or ranks", len(j.Sizes), world)
		refuse(len(j.Sizes)*min(j.Epochs, computed) > maxReads, "%d files: simulate a tenth of them with a tenth of the room; the times are a tenth, too", len(j.Sizes))
		refuse(j.Copies > 0 && j.Copies >= j.Nodes, "replicas %d of a file on %d nodes: one on each of the other nodes is the most; give 0 for all", j.Copies, j.Nodes)
	}
	var total float64
	for i, n := range j.Sizes {
		if total += float64(n); n < 0 {
			refuse(true, "file %d has %d bytes: sizes are 0 or more", i+1, n)
			break
		}
	}
	refuse(total > math.MaxInt64/4, "a dataset of %.0f bytes: give smaller or fewer files", total)
	refuse(j.Room < 0, "room %d: give the bytes on each node, or 0 for enough", j.Room)
	refuse(j.Ahead < 0, "ahead %d: give bytes, or 0 to prefetch nothing", j.Ahead)
	refuse(j.Step < 0 || j.Decode < 0, "step %v, decode %v: a time is 0 or more", j.Step, j.Decode)
	for _, d := range []struct {
		name string
		Device
	}{{"source", j.Source}, {"disk", j.Disk}, {"network", j.Network}} {
		refuse(d.Latency < 0 || d.Bandwidth < 0 || d.IOPS < 0, "%s: latency %v, bandwidth %d, iops %d: give 0 for no limit, or more", d.name, d.Latency, d.Bandwidth, d.IOPS)
	}
	refuse(j.Source.Bandwidth == 0, "no bandwidth of the source: give --source-bandwidth, or --probe DIR with a directory of the source that has large or many files")
	return errors.Join(errs...)
}
