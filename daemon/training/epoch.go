package training

import (
	"fmt"
	"maps"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Unknown is the epoch of reads without an access plan.
const Unknown = -1

// Count counts samples: files that were read from their beginning.
type Count struct {
	Samples int64 `json:"samples"`
	Bytes   int64 `json:"bytes"`
}

// Places counts samples by the place from which they were read.
type Places struct {
	Prefetched Count `json:"prefetched"` // the page cache: prefetched, or still there
	Local      Count `json:"local"`      // this node's drives
	Replica    Count `json:"replica"`    // a replica on this node's drives
	Remote     Count `json:"remote"`     // another node
	Source     Count `json:"source"`     // overflow, read through from the source
}

// Named returns the counts of p with their names, in the order of a report.
func (p *Places) Named() []struct {
	Name string
	*Count
} {
	return []struct {
		Name string
		*Count
	}{{"prefetched", &p.Prefetched}, {"local", &p.Local}, {"replica", &p.Replica}, {"remote", &p.Remote}, {"source", &p.Source}}
}

// Add adds sign times q to p.
func (p *Places) Add(q Places, sign int64) {
	from := q.Named()
	for i, c := range p.Named() {
		c.Samples += sign * from[i].Samples
		c.Bytes += sign * from[i].Bytes
	}
}

// Reads counts the reads of a dataset by a node's mount since the daemon's start.
type Reads struct {
	Places
	Waits Waits
	First metadata.Time // when the first read was answered; 0: unknown
}

// Epoch records how an epoch of a dataset was read, on one node or in the job.
type Epoch struct {
	Epoch int           `json:"epoch"` // or Unknown
	Began metadata.Time `json:"began"` // the first read
	Ended metadata.Time `json:"ended"` // the last read so far
	Places
	Waits Waits `json:"waits"`
	// StallP50 and StallP99 are quantiles of the time that a read waited for the daemon, in seconds. They are upper
	// bounds, at most twice the exact value.
	StallP50 float64 `json:"stall_p50"`
	StallP99 float64 `json:"stall_p99"`
	// Ranks sums up the ranks' own measurements; nil if there are none.
	Ranks *Ranks `json:"ranks,omitempty"`
}

// merge adds another node's record of the same epoch.
func (e *Epoch) merge(o Epoch) {
	if e.Began == 0 || o.Began != 0 && o.Began < e.Began {
		e.Began = o.Began
	}
	e.Ended = max(e.Ended, o.Ended)
	e.Places.Add(o.Places, 1)
	e.Waits.add(o.Waits, 1)
	if o.Ranks != nil {
		if e.Ranks == nil {
			e.Ranks = &Ranks{BySource: make(map[string]int64)}
		}
		e.Ranks.merge(*o.Ranks)
	}
}

// Measured holds a rank's measurements of its own reads in an epoch.
type Measured struct {
	Dataset    string           `json:"dataset"`
	Rank       int              `json:"rank"`
	Epoch      int              `json:"epoch"`
	Batches    int64            `json:"batches"`
	Samples    int64            `json:"samples"`
	Seconds    float64          `json:"seconds"`     // duration of the epoch
	Waited     float64          `json:"waited"`      // time spent waiting for batches, in seconds
	FirstBatch float64          `json:"first_batch"` // seconds
	StallP50   float64          `json:"stall_p50"`   // wait for a batch, in seconds
	StallP99   float64          `json:"stall_p99"`
	StallMax   float64          `json:"stall_max"`
	BySource   map[string]int64 `json:"by_source,omitempty"` // samples
}

// Limits for the measurements that a rank posts.
const (
	maxRank    = 1 << 20
	maxEpoch   = 1 << 20
	maxSources = 16
	maxName    = 64
	maxNumber  = 1 << 48 // of batches, samples and seconds: their sums do not overflow
)

func (m *Measured) check() error {
	bad := func(what string) error {
		return fmt.Errorf("measurement of rank %d, epoch %d: %s: %w", m.Rank, m.Epoch, what, syscall.EINVAL)
	}
	switch {
	case m.Rank < 0 || m.Rank >= maxRank || m.Epoch < 0 || m.Epoch >= maxEpoch:
		return bad("no such rank or epoch")
	case m.Batches < 0 || m.Samples < 0 || m.Batches > maxNumber || m.Samples > maxNumber:
		return bad("impossible number of batches or samples")
	case len(m.BySource) > maxSources:
		return bad("too many sources")
	}
	for _, s := range []float64{m.Seconds, m.Waited, m.FirstBatch, m.StallP50, m.StallP99, m.StallMax} {
		if !(s >= 0 && s <= maxNumber) {
			return bad("impossible time")
		}
	}
	for name, n := range m.BySource {
		if len(name) > maxName || n < 0 || n > maxNumber {
			return bad("by_source must map short names to numbers of samples")
		}
	}
	return nil
}

// Ranks sums up the measurements of ranks in an epoch.
type Ranks struct {
	Ranks      int              `json:"ranks"`
	Batches    int64            `json:"batches"`
	Samples    int64            `json:"samples"`
	Seconds    float64          `json:"seconds"`     // of all ranks together
	Waited     float64          `json:"waited"`      // likewise
	FirstBatch float64          `json:"first_batch"` // of the slowest rank
	StallP50   float64          `json:"stall_p50"`   // mean of the ranks' values, weighted by batches
	StallP99   float64          `json:"stall_p99"`   // of the worst rank
	StallMax   float64          `json:"stall_max"`
	BySource   map[string]int64 `json:"by_source,omitempty"`
}

func (r *Ranks) add(m Measured) {
	r.merge(Ranks{
		Ranks: 1, Batches: m.Batches, Samples: m.Samples, Seconds: m.Seconds, Waited: m.Waited, FirstBatch: m.FirstBatch,
		StallP50: m.StallP50, StallP99: m.StallP99, StallMax: m.StallMax, BySource: m.BySource,
	})
}

func (r *Ranks) merge(o Ranks) {
	if all := r.Batches + o.Batches; all > 0 {
		r.StallP50 = (r.StallP50*float64(r.Batches) + o.StallP50*float64(o.Batches)) / float64(all)
	}
	r.Ranks, r.Batches, r.Samples = r.Ranks+o.Ranks, r.Batches+o.Batches, r.Samples+o.Samples
	r.Seconds, r.Waited = r.Seconds+o.Seconds, r.Waited+o.Waited
	r.FirstBatch = max(r.FirstBatch, o.FirstBatch)
	r.StallP99, r.StallMax = max(r.StallP99, o.StallP99), max(r.StallMax, o.StallMax)
	sum := maps.Clone(r.BySource)
	if sum == nil {
		sum = make(map[string]int64)
	}
	for name, n := range o.BySource {
		sum[name] += n
	}
	r.BySource = sum
}
