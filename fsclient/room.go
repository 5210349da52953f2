package fsclient

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// roomFresh is how long what a node said of its room counts, if it is not used up.
	roomFresh = time.Second
	// mayClaim is the most that a client gathers for a node before it asks it again.
	mayClaim = 31 << 20
	// roomEach is what a node must have free for each client of the job: what one
	// has gathered and not sent when the node is asked (WriteMemory) and what it
	// claims of the answer, with something for the ends of pages. So what is
	// gathered finds room, however many gather, unless what others write
	// through takes all of it meanwhile.
	roomEach = WriteMemory + mayClaim + 1<<20
)

// rooms is how much space the nodes have left, as they said last.
type rooms struct {
	mu   sync.Mutex
	room map[metadata.NodeID]room // under mu
}

type room struct {
	free    int64
	at      time.Time
	claimed int64  // of what has been gathered since
	answer  uint64 // counts the answers of the node
}

func (r *rooms) init() { r.room = make(map[metadata.NodeID]room) }

// claim reports whether n bytes for the node id may be gathered, of which least
// must stay free, and then they are claimed. If that is not known the node has to
// be asked, with answer.
func (r *rooms) claim(id metadata.NodeID, n, least int64, now time.Time) (ok, known bool, answer uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have, known := r.room[id]
	switch {
	case !known || now.Sub(have.at) >= roomFresh:
		return false, false, have.answer
	case have.free < least:
		return false, true, 0
	case have.claimed+n > mayClaim || have.free-have.claimed-n < least:
		return false, have.claimed == 0, have.answer
	}
	have.claimed += n
	r.room[id] = have
	return true, true, 0
}

// set takes what the node answered when it was asked with answer. If another one has
// been taken meanwhile, that counts, with what was claimed of it.
func (r *rooms) set(id metadata.NodeID, answer uint64, free int64, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.room[id].answer == answer {
		r.room[id] = room{free: free, at: now, answer: answer + 1}
	}
}

// roomy reports whether the nodes that will have what is gathered from off on
// have room for it, and claims that. One that cannot be asked has none.
func (f *File) roomy(ctx context.Context, off int64) bool {
	f.mu.Lock()
	a, order := f.known(), f.order
	f.mu.Unlock()
	if off == atEnd {
		off = a.Size + f.tail.underWay()
	}
	for _, s := range datapath.Spans(a.Layout.Chunk(), order, off, tailSize) {
		if !f.c.roomy(ctx, s.Node, s.Len) {
			return false
		}
	}
	return true
}

func (c *Client) roomy(ctx context.Context, id metadata.NodeID, n int64) bool {
	least := int64(len(c.cfg.View().Map.Nodes)) * roomEach
	ok, known, answer := c.rooms.claim(id, n, least, c.cfg.Now())
	if known {
		return ok
	}
	ctx, cancel := context.WithTimeout(ctx, spaceWait)
	defer cancel()
	sp, err := c.spaceOf(ctx, id)
	if err != nil {
		sp.Free = 0
	}
	c.rooms.set(id, answer, sp.Free, c.cfg.Now())
	ok, _, _ = c.rooms.claim(id, n, least, c.cfg.Now())
	return ok
}
