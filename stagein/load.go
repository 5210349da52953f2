package stagein

import (
	"context"
	"sync"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// freight is a parcel on its way, with the buffers that it lies in.
type freight struct {
	datapath.PiecePut
	held []*source.Piece
	done func(error) error // is told what became of it, and says what is wrong with that
}

// load is the freight that goes to one node together: a message for each parcel
// would cost both ends more than its bytes do.
type load struct {
	node  metadata.NodeID
	all   []freight
	bytes int64
}

// bring has store take a load to its node, and is the first thing that is wrong with
// what became of it.
func (l *load) bring(ctx context.Context, store func(context.Context, metadata.NodeID, []datapath.PiecePut) ([]error, error)) (first error) {
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
		if e = l.all[i].done(e); first == nil {
			first = e
		}
		release(l.all[i].held)
	}
	return first
}

// loads is what is being packed.
type loads struct {
	send func(*load) // has it brought

	mu   sync.Mutex
	open map[metadata.NodeID]*load // guarded by mu
}

func newLoads(send func(*load)) *loads {
	return &loads{send: send, open: make(map[metadata.NodeID]*load)}
}

// add puts x on the load for its node, and sends the one that has no room for it.
func (q *loads) add(node metadata.NodeID, x freight) {
	n := x.Len()
	q.mu.Lock()
	full := q.open[node]
	if full != nil && full.bytes+n <= wire.MaxData && len(full.all) < wire.MaxPieces {
		full.all, full.bytes = append(full.all, x), full.bytes+n
		full = nil
	} else {
		q.open[node] = &load{node: node, all: []freight{x}, bytes: n}
	}
	q.mu.Unlock()
	if full != nil {
		q.send(full)
	}
}

// flush sends all that is packed. Who waits for a buffer has to do so before: others
// could wait for those that the loads hold.
func (q *loads) flush() {
	q.mu.Lock()
	open := q.open
	q.open = make(map[metadata.NodeID]*load)
	q.mu.Unlock()
	for _, l := range open {
		q.send(l)
	}
}

// PutEach has put store parcels one by one, a part of one after the other.
func PutEach(ctx context.Context, ps []datapath.PiecePut, put func(ctx context.Context, ino metadata.Ino, p []byte, off int64) error) []error {
	errs := make([]error, len(ps))
	for i := range ps {
		off := ps[i].Off
		for _, b := range ps[i].Data {
			if errs[i] = put(ctx, ps[i].Ino, b, off); errs[i] != nil {
				break
			}
			off += int64(len(b))
		}
	}
	return errs
}
