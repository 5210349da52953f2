package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// syncPatience bounds how long fsync waits for earlier appends of other nodes. It is longer than it takes to give up a
// node that hangs.
const syncPatience = 45 * time.Second

// settleAfter is the delay after which the home is informed that an append is complete, if no later append reports it
// first.
const settleAfter = 10 * time.Millisecond

// appending is the state of this node's appends to a File.
type appending struct {
	turn           wait.Mutex // held by the append or truncate in flight
	appends.Client            // under File.mu
	last           time.Time  // under File.mu: when the last append was complete
	alone          time.Time  // under File.mu: appends may be buffered until this time
	recalls        uint64     // under File.mu: counts how often a home has ended that
}

// Append writes p at the end of the file, wherever that is: no other append, on any node, gets any part of that range,
// and no reader sees zeros there meanwhile. With an error the first n bytes are written.
func (f *File) Append(ctx context.Context, p []byte) (n int, err error) {
	if f.ino.Sealed() {
		return 0, readOnly(f.ino)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if err := f.drain(ctx); err != nil {
		return 0, err
	}
	return f.appendNow(ctx, p)
}

// appendNow is Append without draining the buffer first.
func (f *File) appendNow(ctx context.Context, p []byte) (n int, err error) {
	if err := f.app.turn.Lock(ctx); err != nil {
		return 0, fmt.Errorf("append to %v: %w", f.ino, err)
	}
	defer f.app.turn.Unlock()
	off, err := f.reserve(ctx, int64(len(p)))
	if err != nil {
		return 0, err
	}
	f.mu.Lock()
	a, order := f.attr, f.order
	f.mu.Unlock()
	n, nodes, err := f.c.data.Write(ctx, &a, order, p, off)
	f.appended(nodes, n, err, len(f.c.data.Spans(&a, order, off, int64(len(p)))) == 1)
	f.settleSoon(ctx)
	return n, err
}

// Refresh asks the home for the attributes, so that Read knows the current size.
func (f *File) Refresh(ctx context.Context) error {
	_, err := f.refresh(ctx)
	return err
}

// reserve asks the home for a range of n bytes.
func (f *File) reserve(ctx context.Context, n int64) (off int64, err error) {
	seq := f.c.files.nextSeq() // takes fileTable.mu, never under f.mu
	f.mu.Lock()
	defer f.mu.Unlock()
	q := f.app.Reserve(f.ino, seq, n, f.written())
	for {
		reports := f.app.Reports()
		f.mu.Unlock()
		pl, err := f.place(ctx, q)
		f.mu.Lock()
		switch {
		case err != nil:
			f.app.Failed()
		case f.app.Placed(pl, reports):
			continue
		default:
			f.learn(pl.Attr)
		}
		return pl.Off, err
	}
}

// isAlone reports whether no other node has the file open and its home will recall that state before one does.
func (f *File) isAlone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.c.cfg.Now().Before(f.app.alone)
}

// endAlone records that another node may have the file open; answers to earlier requests no longer count. f.mu is held.
func (f *File) endAlone() {
	f.alone, f.app.alone = false, time.Time{}
	f.app.recalls++
}

// learn takes the attributes of an answer, unless it was overtaken by a later answer: one with a later st_ctime, or
// with a larger size from appends of other nodes. f.mu is held.
func (f *File) learn(a metadata.Attr) {
	if a.Ctime >= f.attr.Ctime || a.Size > f.attr.Size {
		f.attr = a
	}
}

// written returns the end of this node's unpublished writes other than appends; f.mu is held.
func (f *File) written() int64 {
	if f.dirty {
		return f.end
	}
	return 0
}

// appended ends an append of which n bytes were written to its range, by one call or several; err is the error of one
// of them.
func (f *File) appended(nodes []metadata.NodeID, n int, err error, one bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.touch(nodes)
	f.failed = f.failed || err != nil
	unused := n == 0 && one && neverWritten(err) && !f.attr.Layout.Copied() // one copy may have the bytes
	f.app.Written(n, unused, f.known().Size)
	f.app.last = f.c.cfg.Now()
	f.gen++
	f.buffer.FlushSoon() // until the stored size covers it
}

// neverWritten reports whether err means that no bytes were written, nor will be.
func neverWritten(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EHOSTDOWN)
}

// settleAppends reports to the home that the appends of this node are complete, and waits a moment for earlier appends
// of other nodes.
func (f *File) settleAppends(ctx context.Context) error {
	f.mu.Lock()
	unsettled := f.app.Unsettled()
	f.mu.Unlock()
	if !unsettled {
		return nil
	}
	_, _, err := f.settled(ctx, true)
	return err
}

// AwaitVisible waits until the stored size covers the appends of this node: a restarted home knows only that size of
// the appends of a dead node. A node that hangs in an earlier append delays it until that node is given up.
func (f *File) AwaitVisible(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	for {
		if !f.invisible() {
			return nil
		}
		q, pl, err := f.settled(ctx, true)
		if err != nil {
			return fmt.Errorf("sync of inode %v: %w", f.ino, err)
		}
		if appends.Covered(q, pl) {
			return nil
		}
	}
}

// settleInvisible reports to the home which appends of this node are complete, without waiting for earlier appends of
// other nodes. It reports whether the stored size still does not cover them.
func (f *File) settleInvisible(ctx context.Context) (invisible bool, err error) {
	if !f.invisible() {
		return false, nil
	}
	_, _, err = f.settled(ctx, false)
	return f.invisible(), err
}

func (f *File) invisible() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.app.Invisible()
}

// settled reports to the home which appends are complete, and takes its answer. With wait the home answers when all
// nodes see the appends, or after a moment.
func (f *File) settled(ctx context.Context, wait bool) (q metadata.Append, pl metadata.Place, err error) {
	f.mu.Lock()
	q, reports := f.app.Settlement(f.ino, f.written()), f.app.Reports()
	f.mu.Unlock()
	if !wait {
		q.Wait = 0
	}
	if pl, err = f.place(ctx, q); err != nil {
		return q, pl, err
	}
	f.mu.Lock()
	last := f.app.Settled(q, pl, reports)
	if last {
		f.learn(pl.Attr)
	}
	drop := last && f.drops && metadata.SetIDs(pl.Attr.Mode) != 0
	f.mu.Unlock()
	if drop {
		err = f.dropSetIDs(ctx)
	}
	return q, pl, err
}

// cutOff forgets the appends before a truncate.
func (f *File) cutOff() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.app.Truncated()
}

// place makes one append call to the home.
func (f *File) place(ctx context.Context, q metadata.Append) (pl metadata.Place, err error) {
	s, err := f.c.nodes.Home(f.ino)
	if err != nil {
		return pl, err
	}
	f.mu.Lock()
	asked, recalls := f.c.cfg.Now(), f.app.recalls
	f.mu.Unlock()
	o, err := opensOf(s)
	if err == nil {
		err = changing(f.c, f.ino, func() (_ metadata.Attr, err error) {
			pl, err = o.Append(ctx, f.c.holder(), q)
			return pl.Attr, err
		})
	}
	if err == nil {
		f.mu.Lock()
		f.app.alone = time.Time{}
		if f.alone = pl.Alone && recalls == f.app.recalls; f.alone {
			f.app.alone = asked.Add(appends.AloneTerm)
		}
		f.mu.Unlock()
	}
	return pl, f.missed(err)
}

// settleSoon reports soon to the home that an append is complete; at once if this node is the home, where the report
// costs no call.
func (f *File) settleSoon(ctx context.Context) {
	c := f.c
	if f.ino.Home() == c.cfg.Self {
		_, _, _ = f.settled(ctx, false) // the next append need not wait for other nodes; Flush reports an error
		return
	}
	c.files.mu.Lock()
	c.files.settle[f] = struct{}{}
	c.files.mu.Unlock()
	c.appended.Set()
}

// settler reports complete appends to their homes.
type settler struct{ c *Client }

// run settles appends until the client is closed.
func (s settler) run() {
	wait.Batches(s.c.ctx, s.c.appended, settleAfter, s.c.files.unsettled, func() time.Duration {
		s.settleAll()
		return settleAfter
	})
}

// settleAll settles the files without an append in flight. No file waits for the home of another file.
func (s settler) settleAll() {
	c := s.c
	files := c.files.takeUnsettled(func(f *File) bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !f.app.Busy() && (!f.app.Unsettled() || c.cfg.Now().Sub(f.app.last) >= settleAfter/2)
	})
	for _, f := range files {
		c.wg.Go(func() {
			err := f.settleAppends(c.ctx)
			if err != nil {
				c.cfg.Log.WithError(err).WithField("inode", f.ino.String()).Debug("end of an append not delivered to the file's home: retrying")
			}
			// Until the report is delivered, later appends of other nodes stay invisible.
			again := err != nil && c.mayReturn(f.ino.Home(), err) && retry.Pause(c.ctx, againAfter)
			if c.files.settledOnce(f, again); again {
				c.appended.Set()
			}
		})
	}
}
