package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/deploy/simulate"
)

// simulateFlags holds the flags that describe the job to simulate.
type simulateFlags struct {
	job              simulate.Job
	files            int
	sigma            float64
	manifest         string
	nodes            []int
	policies         []string
	sizes            map[string]*string // flags that are sizes, by name
	probe, probeDisk string
	svg              string
	asJSON           bool
}

func simulateCmd() *cobra.Command {
	var f simulateFlags
	c := &cobra.Command{
		Use:   "simulate",
		Short: "Predict the epochs of a training job under each way of reading its dataset",
		Long: `Simulate answers how large a job has to be, before it is queued. It prints, for
each number of nodes and each policy, the time to the first batch and of the
epochs, the share of the time that training waits for data, and where samples
are read from. It needs no running job.

    direct       every sample is read from the source
    stage-first  training starts when the dataset is staged; no plan
    overlap      training reads while the dataset is staged; no plan
    plan         the same, prefetched in the order of the sampler
    locality     plan, and ranks take the samples that their node holds
    replicas     plan, and files are copied to more nodes
    chunk-wise   plan, and runs of neighbours are shuffled

The dataset is --files of a lognormal distribution, or --manifest, a file whose
lines begin with a size in bytes. Rates are given, or measured: --probe reads
files below a directory of the source for some seconds, --probe-disk those of a
directory on a node's drive.

Page caches are taken to hold no sample until the next epoch, as with a dataset
that is larger than memory.`,
		Example: `  bivouac simulate --files 1281167 --mean-size 110K --nodes 4,8,16 --ranks 4 --room 60G \
      --batch 64 --step 150ms --epochs 90 --source-bandwidth 1G --source-latency 2ms
  find /lustre/me/imagenet -type f -printf '%s %P\n' | sort -k 2 > sizes
  bivouac simulate --manifest sizes --nodes 8 --step 150ms --probe /lustre/me/imagenet --svg epochs.svg`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return f.run(c) },
	}
	f.register(c)
	return c
}

func (f *simulateFlags) register(c *cobra.Command) {
	j, fs := &f.job, c.Flags()
	fs.IntVar(&f.files, "files", 0, "number of files of the dataset")
	fs.Float64Var(&f.sigma, "sigma", 0.5, "spread of the file sizes: standard deviation of their logarithm; 0: all alike")
	fs.StringVar(&f.manifest, "manifest", "", "read the sizes from this file instead: one line for each file, which begins with its size in bytes")
	fs.IntSliceVar(&f.nodes, "nodes", []int{4}, "number of nodes, or several, separated by commas")
	fs.IntVar(&j.Ranks, "ranks", 4, "ranks on each node")
	fs.IntVar(&j.Batch, "batch", 64, "samples in a batch of a rank")
	timeVar(fs, &j.Step, "step", 0, "time of a training step without waiting for data (required)")
	fs.IntVar(&j.Epochs, "epochs", 10, "number of epochs; the third and later ones are alike")
	fs.IntVar(&j.Workers, "workers", 4, "workers of each rank's DataLoader")
	fs.IntVar(&j.Prefetch, "prefetch", 2, "batches that each worker loads ahead (prefetch_factor)")
	timeVar(fs, &j.Decode, "decode", 0, "processor time of a worker for a sample")
	fs.BoolVar(&j.Async, "async", false, "ranks do not wait for each other after each step")
	fs.BoolVar(&j.Archive, "archive", false, "the source is a plain tar or zip, not a directory")
	timeVar(fs, &j.Source.Latency, "source-latency", time.Millisecond, "latency of a request to the source; a file costs three")
	fs.Int64Var(&j.Source.IOPS, "source-iops", 0, "requests per second that the source serves (default: no limit)")
	timeVar(fs, &j.Disk.Latency, "disk-latency", 100*time.Microsecond, "time to open and read a small local file")
	timeVar(fs, &j.Network.Latency, "network-latency", 300*time.Microsecond, "time to read a small file of another node")
	fs.IntVar(&j.Copies, "replicas", 0, "copies of a file beside its owner's, for the policy replicas (default: one on every other node)")
	fs.IntVar(&j.Chunk, "chunk", 64, "files in a chunk, for the policy chunk-wise")
	fs.IntVar(&j.Group, "group", 64, "chunks that a rank shuffles together, for the same policy")
	fs.Uint64Var(&j.Seed, "seed", 0, "seed of orders, sizes and places")
	fs.StringSliceVar(&f.policies, "policy", nil, "only these policies")
	fs.StringVar(&f.probe, "probe", "", "measure latency and bandwidth of the source with files below this directory")
	fs.StringVar(&f.probeDisk, "probe-disk", "", "measure latency and bandwidth of a node's drive with files below this directory")
	fs.BoolVar(&f.asJSON, "json", false, "print JSON")
	fs.StringVar(&f.svg, "svg", "", "also write a chart of the last epochs to this SVG file")
	f.sizes = make(map[string]*string)
	for _, s := range [][3]string{
		{"mean-size", "110K", "mean size of the files"},
		{"room", "", "space for the dataset on each node (default: enough)"},
		{"source-bandwidth", "", "bytes per second of the source, for all nodes together"},
		{"disk-bandwidth", "2G", "bytes per second of a node's drives"},
		{"network-bandwidth", "1G", "bytes per second of a node's link, in each direction"},
		{"ahead", "1G", "bytes that a node prefetches by plan"},
	} {
		f.sizes[s[0]] = fs.String(s[0], s[1], s[2])
	}
	must(c.MarkFlagRequired("step"))
}

func (f *simulateFlags) run(c *cobra.Command) error {
	policies, err := f.parse(c)
	if err != nil {
		return err
	}
	var rs []simulate.Result
	for _, n := range f.nodes {
		j := f.job
		j.Nodes = n
		for _, p := range policies {
			r, err := simulate.Run(&j, p)
			if err != nil {
				return err
			}
			if rs = append(rs, r); c.Context().Err() != nil {
				return c.Context().Err()
			}
		}
	}
	if f.svg != "" {
		if err := f.draw(rs); err != nil {
			return err
		}
	}
	if !f.asJSON {
		return simulate.Table(c.OutOrStdout(), &f.job, rs)
	}
	return writeJSON(c.OutOrStdout(), rs)
}

func (f *simulateFlags) draw(rs []simulate.Result) error {
	w, err := os.Create(f.svg)
	if err != nil {
		return fmt.Errorf("--svg: %w", err)
	}
	err = simulate.SVG(w, rs)
	if e := w.Close(); err == nil {
		err = e
	}
	return err
}

// parse completes the job, taking the measurements that the flags ask for.
func (f *simulateFlags) parse(c *cobra.Command) (policies []simulate.Policy, err error) {
	mean, j := int64(0), &f.job
	for name, to := range map[string]*int64{
		"mean-size": &mean, "room": &j.Room, "source-bandwidth": &j.Source.Bandwidth, "disk-bandwidth": &j.Disk.Bandwidth,
		"network-bandwidth": &j.Network.Bandwidth, "ahead": &j.Ahead,
	} {
		if *to, err = pitch.ParseSize(*f.sizes[name]); err != nil {
			return nil, fmt.Errorf("--%s: %w", name, err)
		}
	}
	policies = simulate.Policies
	if len(f.policies) > 0 {
		policies = nil
	}
	for _, name := range f.policies {
		p, err := simulate.ParsePolicy(name)
		if err != nil {
			return nil, fmt.Errorf("--policy: %w", err)
		}
		policies = append(policies, p)
	}
	if len(f.nodes) == 0 {
		return nil, fmt.Errorf("--nodes is empty: give one number or more, such as 4,8,16")
	}
	if err := f.dataset(mean); err != nil {
		return nil, err
	}
	return policies, errors.Join(probeFor(c, "source", f.probe, &j.Source), probeFor(c, "disk", f.probeDisk, &j.Disk))
}

// dataset generates or reads the sizes of the files.
func (f *simulateFlags) dataset(mean int64) (err error) {
	switch {
	case f.manifest != "" && f.files != 0:
		return fmt.Errorf("give --files or --manifest, not both")
	case f.manifest == "" && f.files == 0:
		return fmt.Errorf("no dataset: give --files and --mean-size, or --manifest FILE")
	case f.manifest == "":
		f.job.Sizes, err = simulate.Lognormal(f.files, mean, f.sigma, f.job.Seed)
		return err
	}
	r, err := os.Open(f.manifest)
	if err != nil {
		return fmt.Errorf("--manifest: %w", err)
	}
	defer r.Close() // read only
	if f.job.Sizes, err = simulate.ReadSizes(r); err != nil {
		return fmt.Errorf("--manifest %s: %w", f.manifest, err)
	}
	return nil
}
