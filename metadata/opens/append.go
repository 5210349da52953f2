package opens

import (
	"context"
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// waitTime bounds how long one answer waits for the appends of other nodes. The client asks again to wait longer.
const waitTime = 5 * time.Second

// aloneSlack is the time beyond appends.AloneTerm that the home waits for a node that does not answer.
const aloneSlack = 100 * time.Millisecond

// drainPatience is how long an open waits for other nodes to send their buffered appends; busyPause is the pause before
// the home asks a busy node again.
const (
	drainPatience = 20 * time.Second
	busyPause     = 10 * time.Millisecond
)

// maxWaiting bounds the truncates and size updates, over all files, that wait for truncates.
const maxWaiting = 64

// Append implements metadata.Opens.
func (f *Files) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	if q.Len < 0 || q.End < 0 || q.Len > math.MaxInt64/4 || q.End > math.MaxInt64/4 {
		return metadata.Place{}, fmt.Errorf("append of %d bytes to %v: %w", q.Len, q.Ino, syscall.EFBIG)
	}
	defer f.Settle(q.Ino)
	for losses := -1; ; {
		was, err := f.Before(by, q, f.cfg.Now())
		if err != nil {
			return metadata.Place{}, err
		}
		if losses < 0 {
			losses = was.losses
		}
		if q.Announces() && was.losses != losses {
			return metadata.Place{}, fmt.Errorf("truncate of %v: node %d was given up meanwhile: %w", q.Ino, by.Node, syscall.ESTALE)
		}
		if was.wait != nil {
			if err := f.awaitRound(ctx, was, q.Announces()); err != nil {
				return metadata.Place{}, fmt.Errorf("append to %v: %w", q.Ino, err)
			}
			continue
		}
		a, err := f.cfg.Store.Getattr(ctx, q.Ino)
		if err != nil {
			return metadata.Place{}, err
		}
		switch a.Mode & syscall.S_IFMT {
		case syscall.S_IFREG:
		case syscall.S_IFDIR:
			return metadata.Place{}, fmt.Errorf("append to %v: %w", q.Ino, syscall.EISDIR)
		default:
			return metadata.Place{}, fmt.Errorf("append to %v: %w", q.Ino, syscall.EINVAL)
		}
		p, end, err := f.Place(by, q, was, a.Size, f.cfg.Now())
		if err == errAgain {
			continue
		}
		if err != nil {
			return metadata.Place{}, err
		}
		if q.Wait > end || q.Announces() {
			if complete := f.awaitOthers(ctx, q); q.Announces() && !complete {
				p.Off = -1
			}
		}
		if q.Announces() {
			f.awaitPublished(q.Ino)
			if a, err = f.cfg.Store.Getattr(ctx, q.Ino); err != nil {
				return metadata.Place{}, err
			}
		}
		p.Attr, err = f.publish(ctx, a, was)
		return p, err
	}
}

// awaitOthers waits at most waitTime for the appends that q depends on, and reports whether they are complete.
func (f *Files) awaitOthers(ctx context.Context, q metadata.Append) bool {
	ctx, cancel := context.WithTimeout(ctx, waitTime)
	defer cancel()
	for {
		wait := f.Incomplete(q)
		if wait == nil {
			return true
		}
		if await(ctx, wait, 0) != nil {
			return false
		}
	}
}

// publish stores the size that all nodes may see.
func (f *Files) publish(ctx context.Context, a metadata.Attr, was round) (metadata.Attr, error) {
	end, ok := f.BeginPublish(a.Ino, was)
	if !ok {
		return f.cfg.Store.Getattr(ctx, a.Ino) // truncated meanwhile: the truncate has set the size
	}
	defer f.EndPublish(a.Ino)
	if end <= a.Size {
		return a, nil
	}
	return f.cfg.Store.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.GrowSize | metadata.MtimeNow, Size: end})
}

// endAlone returns when no other node buffers appends to ino, which by has just opened. Each node that may buffer some
// has sent them, has not answered within its term, or has taken longer than an open may wait.
func (f *Files) endAlone(ctx context.Context, by metadata.Holder, ino metadata.Ino) {
	patience, cancel := context.WithTimeout(ctx, drainPatience)
	defer cancel()
	for ctx.Err() == nil && f.cfg.Recall != nil {
		told, seq := f.toldAlone(ino, by.Node)
		switch {
		case seq == 0:
			return
		case f.busy(ctx, told, ino) && retry.Pause(patience, busyPause):
		case ctx.Err() == nil:
			f.notAlone(ino, seq)
		}
	}
}

// busy asks a node to send its buffered appends to ino, and reports whether the node needs more time.
func (f *Files) busy(ctx context.Context, id metadata.NodeID, ino metadata.Ino) bool {
	term, cancel := context.WithTimeout(ctx, appends.AloneTerm+aloneSlack)
	defer cancel()
	r, err := f.cfg.Recall(term, id, metadata.Recall{Run: f.cfg.Run, Only: []metadata.Ino{ino}})
	if err != nil {
		<-term.Done()
	}
	return err == nil && r.Busy
}

// awaitRound waits for the event that blocks the round. many marks a request that every node may send at once, such as
// a truncate of one file: EUSERS if too many wait, because each takes a worker, and the event needs a worker, too.
func (f *Files) awaitRound(ctx context.Context, was round, many bool) error {
	if many {
		defer f.waiting.Add(-1)
		if f.waiting.Add(1) > maxWaiting {
			return syscall.EUSERS
		}
	}
	var limit time.Duration
	if !was.till.IsZero() {
		if limit = was.till.Sub(f.cfg.Now()); limit <= 0 {
			return nil
		}
	}
	if err := await(ctx, was.wait, limit); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return syscall.EINTR // the client has disconnected
	}
	return nil
}

// await returns when c is closed, the limit passes (if it is positive), or ctx ends.
func await(ctx context.Context, c <-chan struct{}, limit time.Duration) error {
	var over <-chan time.Time
	if limit > 0 {
		t := time.NewTimer(limit)
		defer t.Stop()
		over = t.C
	}
	select {
	case <-c:
	case <-over:
	case <-ctx.Done():
		if ctx.Err() == context.DeadlineExceeded {
			return syscall.ETIMEDOUT
		}
		return syscall.EINTR
	}
	return nil
}

// Truncate calls set, which applies c and so sets the size of a file. Meanwhile no append gets a place based on the old
// size, and no size is published.
func (f *Files) Truncate(ino metadata.Ino, c metadata.Change, set func() (metadata.Attr, error)) (metadata.Attr, error) {
	if err := f.BeginTruncate(ino, c.Freeze, f.cfg.Now()); err != nil {
		return metadata.Attr{}, err
	}
	f.awaitPublished(ino)
	a, err := set()
	if err != nil {
		c.Size = -1
	}
	f.EndTruncate(ino, c.Size, a.Layout.Copied())
	return a, err
}

// awaitPublished waits for the store updates in progress that publish a size.
func (f *Files) awaitPublished(ino metadata.Ino) {
	for wait := f.Publishing(ino); wait != nil; wait = f.Publishing(ino) {
		<-wait
	}
}

// grow calls set, which publishes a size. It first waits for a truncate that was announced or is in progress, because
// that truncate did not cut off the bytes behind the new size.
func (f *Files) grow(ctx context.Context, ino metadata.Ino, set func() (metadata.Attr, error)) (metadata.Attr, error) {
	for {
		was := f.BeginGrow(ino, f.cfg.Now())
		if was.wait == nil {
			break
		}
		if err := f.awaitRound(ctx, was, true); err != nil {
			return metadata.Attr{}, fmt.Errorf("size of inode %v: %w", ino, err)
		}
	}
	defer f.EndPublish(ino)
	return set()
}
