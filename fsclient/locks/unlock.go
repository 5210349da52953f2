package locks

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// retryPause is the pause before an unlock or a cancel is retried.
	retryPause = 200 * time.Millisecond
	// retryWait bounds how long a request that does not wait for other owners waits for retries of its own owner.
	retryWait = 5 * time.Second
)

// UnlockAll releases all locks of an owner on a file. It makes no call for an owner that never had a lock, such as
// nearly every process that closes a file.
func (l *Locker) UnlockAll(ctx context.Context, ino metadata.Ino, kind metadata.LockKind, owner uint64) error {
	if !l.table.mayHold(ino, kind, owner) {
		return nil
	}
	err := l.Lock(ctx, ino, metadata.Lock{Kind: kind, Owner: owner, End: metadata.MaxLockEnd}, false)
	if errors.Is(err, syscall.ENOLCK) {
		return nil
	}
	return err
}

// unlock releases locks once all buffered writes of this node have arrived. If it is interrupted or the home does not
// answer, it is retried in the background, which is no error.
func (l *Locker) unlock(ctx context.Context, q metadata.LockReq) error {
	err := l.tryUnlock(ctx, q)
	if ctx.Err() == nil && !l.retriable(q.Ino.Home(), err) || err == nil {
		l.table.unlocked(q, err)
		return err
	}
	if l.unlockLater(q) {
		return nil
	}
	return err
}

// tryUnlock tries once to unlock. The next holder sees this node's writes and the size of the file.
func (l *Locker) tryUnlock(ctx context.Context, q metadata.LockReq) error {
	l.table.begin(q)
	defer l.table.end(q)
	flushed := l.cfg.Files.Flush(ctx, q.Ino)
	if flushed != nil && (ctx.Err() != nil || l.retriable(q.Ino.Home(), flushed)) {
		return flushed
	}
	if err := l.cfg.Files.Drain(ctx); err != nil {
		return err
	}
	if _, err := l.ask(ctx, q); err != nil {
		return err
	}
	return flushed
}

// unlockLater unlocks in the background; see later.
func (l *Locker) unlockLater(q metadata.LockReq) bool {
	return l.later(q, func(ctx context.Context) error {
		err := l.tryUnlock(ctx, q)
		if ctx.Err() == nil && !l.retriable(q.Ino.Home(), err) {
			l.table.unlocked(q, err)
		}
		return err
	})
}

// cancelLater cancels q in the background. The home has not answered whether q was granted, or q may still wait in the
// home's queue.
func (l *Locker) cancelLater(q metadata.LockReq) {
	q.Cancel = true
	l.later(q, func(ctx context.Context) error { return l.tryCancel(ctx, &q) })
}

// tryCancel tries once to cancel, and unlocks a lock that was granted unseen. It keeps that lock if the owner has
// another lock on the same bytes, or may be getting one: an unlock would release both, and releasing the other lock
// also releases this one.
func (l *Locker) tryCancel(ctx context.Context, q *metadata.LockReq) error {
	l.table.begin(*q)
	defer l.table.end(*q)
	if q.Cancel {
		a, err := l.call(ctx, *q)
		if err != nil || !a.Granted {
			return err
		}
		if !l.table.holdsNothingElse(*q) {
			l.table.granted(*q, a.Version)
			return nil
		}
		q.Cancel, q.Waiter, q.Type = false, 0, metadata.Unlocked // a retry only unlocks
	}
	_, err := l.ask(ctx, *q)
	return err
}

// later calls once in the background until the file's home has answered or is given up. Meanwhile the file stays open
// for its home, and the owner of q gets no new locks on it. It returns false if the Locker or the file is closed: the
// file's home then releases all its locks.
func (l *Locker) later(q metadata.LockReq, once func(ctx context.Context) error) bool {
	release := func() {}
	if !q.Ino.Sealed() {
		if release = l.cfg.Files.Hold(q.Ino); release == nil {
			return false
		}
	}
	ok := l.table.beginRetry(q, func() {
		l.wg.Go(func() {
			l.retry(q, once)
			release()
		})
	})
	if !ok {
		release()
	}
	return ok
}

func (l *Locker) retry(q metadata.LockReq, once func(ctx context.Context) error) {
	defer l.table.endRetry(q)
	for {
		err := once(l.ctx)
		if l.ctx.Err() != nil {
			return // the homes release the locks with this client's run
		}
		if err == nil || !l.retriable(q.Ino.Home(), err) {
			if err != nil {
				l.cfg.Log.WithError(err).WithField("inode", q.Ino.String()).Debug("unlock not delivered to the file's home")
			}
			return
		}
		retry.Pause(l.ctx, retryPause)
	}
}

// awaitRetries waits until no unlock or cancel of q's owner is being retried on the file, so that no retry releases the
// lock that the owner acquires now.
func (l *Locker) awaitRetries(ctx context.Context, q metadata.LockReq, long bool) error {
	done := l.table.retries(q)
	if done == nil {
		return nil
	}
	if !long {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, retryWait)
		defer cancel()
	}
	for ; done != nil; done = l.table.retries(q) {
		if err := wait.For(ctx, done); err != nil {
			return fmt.Errorf("lock on %v: the file's home has not confirmed the last unlock: %w", q.Ino, err)
		}
	}
	return nil
}
