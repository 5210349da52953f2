package archive

import (
	"context"
	"sync"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// BatchedPut is a put of one piece, with the buffers that hold its bytes.
type BatchedPut struct {
	datapath.PiecePut
	Held []*source.Piece
	Done func(error) error // receives the result of the put; Deliver returns its error
}

// Batch collects puts to one node for one message: a message per put would cost both ends more than the bytes.
type Batch struct {
	node  metadata.NodeID
	all   []BatchedPut
	bytes int64
}

// Deliver sends the batch with store, and returns the first error of its puts.
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

// Batcher collects puts into a batch for each node.
type Batcher struct {
	send func(*Batch) // delivers a full batch

	mu   sync.Mutex
	open map[metadata.NodeID]*Batch // guarded by mu
}

// NewBatcher returns a Batcher that delivers its batches with send.
func NewBatcher(send func(*Batch)) *Batcher {
	return &Batcher{send: send, open: make(map[metadata.NodeID]*Batch)}
}

// Add appends x to its node's batch. If x does not fit, the batch is sent, and x starts the next one.
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

// Flush sends all batches. It must be called before waiting for a buffer: the batches hold buffers, so the wait might
// never end.
func (q *Batcher) Flush() {
	q.mu.Lock()
	open := q.open
	q.open = make(map[metadata.NodeID]*Batch)
	q.mu.Unlock()
	for _, l := range open {
		q.send(l)
	}
}
