package archive

import (
	"context"
	"sync"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// BatchedPut is a parcel on its way, with the buffers that it lies in.
type BatchedPut struct {
	datapath.PiecePut
	Held []*source.Piece
	Done func(error) error // is told what became of it, and says what is wrong with that
}

// Batch is the freight that goes to one node together: a message for each parcel
// would cost both ends more than its bytes do.
type Batch struct {
	node  metadata.NodeID
	all   []BatchedPut
	bytes int64
}

// Deliver has store take a load to its node, and is the first thing that is wrong with
// what became of it.
func (l *Batch) Deliver(ctx context.Context, store func(context.Context, metadata.NodeID, []datapath.PiecePut) ([]error, error)) (first error) {
	ps := make([]datapath.PiecePut, len(l.all))
	for i := range l.all {
		ps[i] = l.all[i].PiecePut
	}
	errs, err := store(ctx, l.node, ps)
	for i := range l.all {
		e := err
		if e == nil {
			e = errs[i]
		}
		if e = l.all[i].Done(e); first == nil {
			first = e
		}
		ReleaseAll(l.all[i].Held)
	}
	return first
}

// Batcher is what is being packed.
type Batcher struct {
	send func(*Batch) // has it brought

	mu   sync.Mutex
	open map[metadata.NodeID]*Batch // guarded by mu
}

func NewBatcher(send func(*Batch)) *Batcher {
	return &Batcher{send: send, open: make(map[metadata.NodeID]*Batch)}
}

// Add puts x on the load for its node, and sends the one that has no room for it.
func (q *Batcher) Add(node metadata.NodeID, x BatchedPut) {
	n := x.Len()
	q.mu.Lock()
	full := q.open[node]
	if full != nil && full.bytes+n <= wire.MaxData && len(full.all) < wire.MaxPieces {
		full.all, full.bytes = append(full.all, x), full.bytes+n
		full = nil
	} else {
		q.open[node] = &Batch{node: node, all: []BatchedPut{x}, bytes: n}
	}
	q.mu.Unlock()
	if full != nil {
		q.send(full)
	}
}

// Flush sends all that is packed. Who waits for a buffer has to do so before: others
// could wait for those that the loads hold.
func (q *Batcher) Flush() {
	q.mu.Lock()
	open := q.open
	q.open = make(map[metadata.NodeID]*Batch)
	q.mu.Unlock()
	for _, l := range open {
		q.send(l)
	}
}
