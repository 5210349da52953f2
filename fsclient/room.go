package fsclient

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// plenty is the free space of a node at which what goes there is gathered:
	// more than others often take of it while an answer is fresh. With less,
	// a write returns when it has arrived, and says itself that there is no room.
	plenty    = 1 << 30
	roomFresh = time.Second
)

// rooms is how much space the nodes have left, as they said last.
type rooms struct {
	mu   sync.Mutex
	room map[metadata.NodeID]room // under mu
}

type room struct {
	free int64
	at   time.Time
}

func (r *rooms) init() { r.room = make(map[metadata.NodeID]room) }

// has reports whether the node id has plenty of space, and whether that is known.
// n bytes are about to go there.
func (r *rooms) has(id metadata.NodeID, n int64, now time.Time) (ok, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, known := r.room[id]
	if !known || now.Sub(have.at) >= roomFresh {
		return false, false
	}
	have.free -= n
	r.room[id] = have
	return have.free >= plenty, true
}

func (r *rooms) set(id metadata.NodeID, free int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room[id] = room{free, now}
}

// roomy reports whether the nodes that will have what is gathered from off on
// have plenty of space. One that cannot be asked has none.
func (f *File) roomy(ctx context.Context, off int64) bool {
	f.mu.Lock()
	a, order := f.known(), f.order
	f.mu.Unlock()
	if off == atEnd {
		off = a.Size
	}
	for _, s := range datapath.Spans(a.Layout.Chunk(), order, off, tailSize) {
		if !f.c.roomy(ctx, s.Node, s.Len) {
			return false
		}
	}
	return true
}

func (c *Client) roomy(ctx context.Context, id metadata.NodeID, n int64) bool {
	if ok, known := c.rooms.has(id, n, c.cfg.Now()); known {
		return ok
	}
	ctx, cancel := context.WithTimeout(ctx, spaceWait)
	defer cancel()
	sp, err := c.spaceOf(ctx, id)
	if err != nil {
		sp.Free = 0
	}
	c.rooms.set(id, sp.Free, c.cfg.Now())
	return sp.Free >= plenty
}
