package fsclient

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// maxTails is how many buffers all files have together. Who finds none
	// writes through.
	maxTails = 64
	// keptTails is how many of them are kept when nobody writes.
	keptTails = 8
	// tailAge is about how long what was gathered waits for more.
	tailAge = 500 * time.Millisecond
	// closeTime bounds how long the end of a client waits for what was gathered.
	closeTime = 5 * time.Second
)

// WriteMemory is the most that a client gathers of what is written, in bytes.
const WriteMemory = maxTails * tailSize

// tails is what a client has gathered of all files.
type tails struct {
	slots chan struct{}  // one for each buffer in use
	kick  chan struct{}  // something was gathered; one is enough
	wg    sync.WaitGroup // of parcels

	mu    sync.Mutex
	free  [][]byte           // under mu: buffers to use again
	files map[*File]struct{} // under mu: all that have gathered what has not arrived, and some whose home was not told yet
	over  bool               // under mu: nothing is gathered any more
}

func (t *tails) init() {
	t.slots = make(chan struct{}, maxTails)
	t.kick = make(chan struct{}, 1)
	t.files = make(map[*File]struct{})
}

// get is an empty buffer; nil if there are too many.
func (t *tails) get() []byte {
	select {
	case t.slots <- struct{}{}:
	default:
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.free); n > 0 {
		b := t.free[n-1]
		t.free = t.free[:n-1]
		return b
	}
	return make([]byte, 0, tailSize)
}

// put takes a buffer back. To make one costs as much as to fill it.
func (t *tails) put(b []byte) {
	t.mu.Lock()
	if len(t.free) < keptTails {
		t.free = append(t.free, b[:0])
	}
	t.mu.Unlock()
	<-t.slots
}

// begun notes that f gathers; false if nobody does any more. f.tail.mu is held,
// so that who finds f finds what it gathers.
func (t *tails) begun(f *File) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return false
	}
	if _, had := t.files[f]; !had {
		t.files[f] = struct{}{}
		nudge(t.kick)
	}
	return true
}

// end has all that is written from now on written through.
func (t *tails) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
}

func (t *tails) pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.files) > 0
}

func (t *tails) list() []*File {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.files))
}

// forget takes f out of the files that gather, if all of it has arrived.
func (t *tails) forget(f *File) {
	f.tail.mu.Lock()
	defer f.tail.mu.Unlock()
	if f.tail.buf != nil || len(f.tail.flying) > 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.files, f)
}

// ageing sends what has waited for more long enough, and has the homes know of
// it, until the client is closed.
func (c *Client) ageing() {
	c.linger(c.tails.kick, tailAge, c.tails.pending, func() time.Duration {
		_ = each(c.ctx, c.tails.list(), func(ctx context.Context, f *File) error {
			if c.files.hold(f) { // else who closed it has done that
				if err := f.Flush(ctx); err != nil { // it stays dirty, and who closes it will be told
					c.cfg.Log.WithError(err).Debug("a home was not told of what was written")
				}
				c.release(f)
			}
			c.tails.forget(f)
			return nil
		})
		return tailAge
	})
}

// Settle waits until all that was written on this node has arrived. What could
// not be written is told to who wrote it.
func (c *Client) Settle(ctx context.Context) error {
	return each(ctx, c.tails.list(), func(ctx context.Context, f *File) error { return f.arrive(ctx) })
}

// settleLast is Settle at the end of the client, after which nothing is gathered.
func (c *Client) settleLast() {
	c.tails.end()
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	if err := c.Settle(ctx); err != nil {
		c.cfg.Log.WithError(err).Error("what was written and not closed may be lost")
	}
}
