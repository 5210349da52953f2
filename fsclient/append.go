package fsclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
)

// settleAfter is how soon the home hears that an append is complete, if
// no other append tells it.
const settleAfter = 10 * time.Millisecond

// appending is what a File knows of the appends of this node.
type appending struct {
	turn chan struct{} // has room for the one append, or truncate, under way

	// The rest is under File.mu.
	seq    uint64            // of the last one
	flying bool              // it is not complete
	flight metadata.Flight   // what is under way, if its Len is not 0
	unused bool              // it was not written
	placed []metadata.Extent // what was appended here that not everybody sees yet
	untold bool              // the home does not know that the last one is complete
	alone  bool              // no other node had the file open as the home said last
	seen   int64             // how long the file is by appends, for those on this node
	last   time.Time         // when the last one was complete
}

// Append writes p at the end of the file, wherever that is: no other append, on
// any node, gets any of that place, and nobody sees zeros there meanwhile. With
// an error the first n bytes are written.
func (f *File) Append(ctx context.Context, p []byte) (n int, err error) {
	if f.ino.Sealed() {
		return 0, readOnly(f.ino)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := f.arrive(ctx); err != nil {
		return 0, err
	}
	return f.appendNow(ctx, p)
}

// appendNow is Append of what was gathered before all that is gathered now.
func (f *File) appendNow(ctx context.Context, p []byte) (n int, err error) {
	if err := take(ctx, f.app.turn); err != nil {
		return 0, fmt.Errorf("append to %v: %w", f.ino, err)
	}
	defer func() { <-f.app.turn }()
	off, err := f.reserve(ctx, int64(len(p)))
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	a, order := f.attr, f.order
	f.mu.Unlock()
	n, nodes, err := f.c.write(ctx, a, order, p, off)
	f.landed(nodes, n, off, err)
	f.c.settleSoon(ctx, f)
	return n, err
}

// Refresh has ReadAt know how long the file is for everybody now.
func (f *File) Refresh(ctx context.Context) error {
	_, err := f.refresh(ctx)
	return err
}

// reserve gets n bytes their place.
func (f *File) reserve(ctx context.Context, n int64) (off int64, err error) {
	seq := f.c.files.nextSeq()
	f.mu.Lock()
	f.app.seq = seq
	f.app.flying = true
	f.app.flight = metadata.Flight{Seq: seq, Extent: metadata.Extent{Off: -1, Len: n}}
	q := metadata.Append{Ino: f.ino, Seq: f.app.seq, Len: n, End: f.written(), Unused: f.app.unused}
	f.mu.Unlock()
	pl, err := f.place(ctx, q)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil { // it may have a place, but nobody will write there
		f.app.flying, f.app.untold, f.app.unused = false, true, true
		f.app.flight = metadata.Flight{}
		return 0, err
	}
	f.heard(pl)
	f.app.flight.Off = pl.Off
	return pl.Off, nil
}

// isAlone reports whether no other node had the file open when last heard of.
func (f *File) isAlone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.app.alone
}

// heard takes the answer of a home that knows of all appends but the one that
// is about to begin; f.mu is held.
func (f *File) heard(pl metadata.Place) {
	f.app.untold, f.app.unused, f.app.seen, f.app.alone = false, false, 0, pl.Alone
	f.app.placed = slices.DeleteFunc(f.app.placed, func(e metadata.Extent) bool {
		return e.End() <= pl.Attr.Size || e.End() > pl.Tail // everybody sees it, or it was cut off
	})
	f.learn(pl.Attr)
}

// learn takes attributes of an answer that another may have overtaken; f.mu is
// held. What is younger, or longer by the appends of others, is the later one.
func (f *File) learn(a metadata.Attr) {
	if a.Ctime >= f.attr.Ctime || a.Size > f.attr.Size {
		f.attr = a
	}
}

// written is how far the other writes of this node have gone; f.mu is held.
func (f *File) written() int64 {
	if f.dirty {
		return f.end
	}
	return 0
}

// landed takes note of an append that was written, or not.
func (f *File) landed(nodes []metadata.NodeID, n int, off int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(nodes)
	f.failed = f.failed || err != nil
	f.app.unused = n == 0 && surely(err)
	if !f.app.unused {
		f.app.placed = append(f.app.placed, f.app.flight.Extent)
	}
	f.app.flying, f.app.untold, f.app.flight = false, true, metadata.Flight{}
	f.app.last = f.c.cfg.Now()
	if off <= f.known().Size { // what is before it is there
		f.app.seen = max(f.app.seen, off+int64(n))
	}
	f.gen++
}

// surely reports whether err says that nothing was written, nor will be.
func surely(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EHOSTDOWN)
}

// settle tells the home that the appends of this node are complete, and waits
// until everybody sees them.
func (f *File) settleAppends(ctx context.Context) error {
	f.mu.Lock()
	if !f.app.untold {
		f.mu.Unlock()
		return nil
	}
	q := f.settlement()
	f.mu.Unlock()
	return f.settled(ctx, q)
}

// settlement is what tells the home which appends are complete; f.mu is held.
func (f *File) settlement() metadata.Append {
	q := metadata.Append{Ino: f.ino, Seq: f.app.seq + 1, End: f.written(), Unused: f.app.unused}
	for _, e := range f.app.placed {
		q.Wait = max(q.Wait, e.End())
	}
	if f.app.flying {
		q.Seq, q.Unused = f.app.seq, false
	}
	return q
}

// settled makes the call, and takes its answer.
func (f *File) settled(ctx context.Context, q metadata.Append) error {
	pl, err := f.place(ctx, q)
	if err != nil {
		return err
	}
	f.mu.Lock()
	last := f.app.seq+1 == q.Seq && !f.app.flying
	if last {
		f.heard(pl)
	}
	drop := last && f.drops && metadata.SetIDs(pl.Attr.Mode) != 0
	f.mu.Unlock()
	if drop {
		return f.dropSetIDs(ctx)
	}
	return nil
}

// cutOff forgets the appends of before a size was set.
func (f *File) cutOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.app.untold, f.app.unused, f.app.seen, f.app.placed = false, false, 0, nil
}

// place asks the home.
func (f *File) place(ctx context.Context, q metadata.Append) (pl metadata.Place, err error) {
	s, err := f.c.homeOf(f.ino)
	if err != nil {
		return pl, err
	}
	o, err := opensOf(s)
	if err == nil {
		pl, err = o.Append(ctx, f.c.holder(), q)
	}
	return pl, f.missed(err)
}

// settleSoon has the home know soon that an append is complete. On this node
// that costs nothing and is done at once.
func (c *Client) settleSoon(ctx context.Context, f *File) {
	if f.ino.Home() == c.cfg.Self {
		f.mu.Lock()
		q := f.settlement()
		f.mu.Unlock()
		_ = f.settled(ctx, q) // Flush will say so
		return
	}
	c.files.mu.Lock()
	c.files.settle[f] = struct{}{}
	c.files.mu.Unlock()
	nudge(c.appended)
}

// settling tells homes of complete appends, until the client is closed.
func (c *Client) settling() {
	c.linger(c.appended, settleAfter, c.files.unsettled, func() time.Duration {
		c.settleAll()
		return settleAfter
	})
}

// settleAll tells of the files that nobody appends to just now. No file waits for
// the home of another one.
func (c *Client) settleAll() {
	files := c.files.takeUnsettled(func(f *File) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !f.app.flying && (!f.app.untold || c.cfg.Now().Sub(f.app.last) >= settleAfter/2)
	})
	for _, f := range files {
		c.wg.Go(func() {
			err := f.settleAppends(c.ctx)
			if err != nil {
				c.cfg.Log.WithError(err).Debug("a home was not told of an append")
			}
			// Until it is, nobody sees what others have appended behind that.
			again := err != nil && c.mayReturn(f.ino.Home(), err) && rpc.Pause(c.ctx, againAfter)
			if c.files.settledOnce(f, again); again {
				nudge(c.appended)
			}
		})
	}
}
