package stripe

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// Place is where bytes of a dataset file came from.
type Place int

// The places.
const (
	Own     Place = iota // this node, as the file's owner or the owner's stand-in
	Replica              // this node, which has a replica
	Remote               // another node
	Source               // the source, read by this node or, if its room was lost later, by the owner
	places
)

// DatasetReads counts the reads of a dataset, by Place, except those that no reader waits for (ReadOpts.NoWait).
type DatasetReads struct {
	Samples [places]int64 // reads of the first byte of a file
	Bytes   [places]int64
}

// datasetReads holds the counters of each dataset.
type datasetReads struct {
	mu  sync.Mutex
	all map[metadata.DatasetID]*DatasetReads // guarded by mu
}

// count counts n bytes from offset off of a file.
func (r *datasetReads) count(id metadata.DatasetID, p Place, off int64, n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.all[id]
	if x == nil {
		if r.all == nil {
			r.all = make(map[metadata.DatasetID]*DatasetReads)
		}
		x = new(DatasetReads)
		r.all[id] = x
	}
	if off == 0 {
		x.Samples[p]++
	}
	x.Bytes[p] += int64(n)
}

// Datasets returns the reads of each dataset since the start.
func (d *Data) Datasets() map[metadata.DatasetID]DatasetReads {
	d.datasets.mu.Lock()
	defer d.datasets.mu.Unlock()
	out := make(map[metadata.DatasetID]DatasetReads, len(d.datasets.all))
	for id, x := range d.datasets.all {
		out[id] = *x
	}
	return out
}

// placed returns the Place of a read of s at the node id, where holder has the bytes as owner or stand-in.
func (s *sealedRead) placed(id, holder metadata.NodeID) Place {
	switch {
	case s.a.Layout.Kind == metadata.Overflow:
		return Source
	case id != s.d.cfg.Self:
		return Remote
	case id != holder:
		return Replica
	}
	return Own
}
