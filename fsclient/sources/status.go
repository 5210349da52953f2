package sources

import (
	"cmp"
	"math"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// State is how a place is used.
type State string

// The states of a place.
const (
	Fast   State = "fast"
	Slow   State = "slow"
	Failed State = "failed"
	Idle   State = "idle"
)

// Status is the state and the measurements of a place.
type Status struct {
	Place       metadata.NodeID
	State       State
	Latency     float64 // seconds; 0: unknown
	Bandwidth   float64 // bytes per second of one read; 0: unknown
	Share       float64 // of recent reads, up to 1
	Reads       int64
	Replicas    int64 // reads of a replica among Reads
	Failures    int64
	Bytes       int64
	Outstanding int
}

// typicalRead is the size of the read by which a status compares places: a sample of ImageNet.
const typicalRead = 110 << 10

// Status lists the places that were read from, in the order of their numbers. Slow is relative to the fastest other
// node.
func (t *Table) Status() []Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	best, recent := math.Inf(1), 0.0
	weight := func(p *place) float64 {
		return p.recent * math.Exp(-now.Sub(p.recentAt).Seconds()/shareMemory.Seconds())
	}
	for id, p := range t.places {
		recent += weight(p)
		if took, known := p.cost(typicalRead, now); known && !p.failed && id != t.self && id != Source {
			best = min(best, took)
		}
	}
	all := make([]Status, 0, len(t.places))
	for id, p := range t.places {
		s := Status{
			Place: id, State: Fast, Latency: p.latency.value, Reads: p.reads, Replicas: p.replicas, Failures: p.failures,
			Bytes: p.bytes, Outstanding: p.outstanding,
		}
		if p.perByte.value > 0 {
			s.Bandwidth = 1 / p.perByte.value
		}
		if recent > 0 {
			s.Share = weight(p) / recent
		}
		switch took, known := p.cost(typicalRead, now); {
		case p.failed:
			s.State = Failed
		case !known:
			s.State = Idle
		case took > slowFactor*best:
			s.State = Slow
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Place, b.Place) })
	return all
}
