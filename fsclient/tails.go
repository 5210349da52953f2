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
	wg    sync.WaitGroup // of parcels, and of age

	mu    sync.Mutex
	free  [][]byte       // under mu: buffers to use again
	files map[*File]bool // under mu: all that have gathered what has not arrived, and some whose home was not told yet; true is being sent by age
	over  bool           // under mu: nothing is gathered any more
}

func (t *tails) init() {
	t.slots = make(chan struct{}, maxTails)
	t.kick = make(chan struct{}, 1)
	t.files = make(map[*File]bool)
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
		t.files[f] = false
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

// old takes the files of which something waits that age does not send already.
func (t *tails) old() (files []*File) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f, sent := range t.files {
		if !sent {
			t.files[f] = true
			files = append(files, f)
		}
	}
	return files
}

// aged takes f out of the files that gather, if all of it has arrived and its home
// is not to be told again.
func (t *tails) aged(f *File, again bool) {
	f.tail.mu.Lock()
	defer f.tail.mu.Unlock()
	arrived := f.tail.buf == nil && len(f.tail.flying) == 0
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.files[f] = false; arrived && !again {
		delete(t.files, f)
	}
}

// ageing sends what has waited for more long enough, and has the homes know of
// it, until the client is closed. No file waits for the nodes of another one.
func (c *Client) ageing() {
	c.linger(c.tails.kick, tailAge, c.tails.pending, func() time.Duration {
		for _, f := range c.tails.old() {
			c.tails.wg.Go(func() { c.age(f) })
		}
		return tailAge
	})
}

// age sends what f has gathered, and tells its home; again, if that is away for a
// moment.
func (c *Client) age(f *File) {
	again := false
	defer func() { c.tails.aged(f, again) }()
	if !c.files.hold(f) {
		return // who closed it has done that
	}
	defer c.release(f)
	if err := f.Flush(c.ctx); err != nil { // it stays dirty, and who closes it will be told
		again = c.mayReturn(f.ino.Home(), err)
		c.cfg.Log.WithError(err).Debug("a home was not told of what was written")
	}
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
