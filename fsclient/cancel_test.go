package fsclient_test

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/locks"
)

// on locks or unlocks ten bytes of the file for an owner on a node.
func (l *lockJob) on(ctx context.Context, node int, typ metadata.LockType, owner, off uint64, wait bool) error {
	return l.cs[node].Lock(ctx, l.f.Ino(), metadata.Lock{Type: typ, Owner: owner, Start: off, End: off + 9}, wait)
}

// interruptedWait lets owner 7 of node 0 wait for a lock until a signal arrives, while the home is unreachable.
func (l *lockJob) interruptedWait(t *testing.T) {
	t.Helper()
	short, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- l.on(short, 0, metadata.WriteLock, 7, 0, true) }()
	l.waiters(t, 1)
	l.home.away.Store(true)
	cancel()
	if err := <-done; !errors.Is(err, syscall.EINTR) {
		t.Fatalf("the interrupted wait = %v, want EINTR", err)
	}
}

func (l *lockJob) waiters(t *testing.T, n int) {
	t.Helper()
	eventually(t, "the waiters at the home", func() bool {
		return l.home.Locks.(interface{ Stats() locks.Stats }).Stats().Waiters == n
	})
}

// TestCancelsAreRetried: an owner whose call failed holds no lock in the end, even if the home learns late that the
// request was given up.
func TestCancelsAreRetried(t *testing.T) {
	unlocked := func(t *testing.T) *lockJob {
		t.Helper()
		l := locked(t, metadata.PosixLock)
		if err := l.unlockAll(ctx); err != nil {
			t.Fatal(err)
		}
		return l
	}
	must := func(t *testing.T, what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	t.Run("still queued", func(t *testing.T) {
		t.Parallel()
		l := unlocked(t)
		must(t, "the first lock", l.on(ctx, 1, metadata.WriteLock, 9, 0, false))
		l.interruptedWait(t)
		l.home.away.Store(false)
		l.waiters(t, 0)
	})
	t.Run("granted meanwhile", func(t *testing.T) {
		t.Parallel()
		l := unlocked(t)
		must(t, "the first lock", l.on(ctx, 1, metadata.WriteLock, 9, 0, false))
		l.interruptedWait(t)
		must(t, "unlock", l.on(ctx, 1, metadata.Unlocked, 9, 0, false))
		l.held(t, "before the cancel has arrived")
		l.home.away.Store(false)
		l.handedOn(t)
	})
	t.Run("granted without an answer", func(t *testing.T) {
		t.Parallel()
		l := unlocked(t)
		l.home.mute.Store(true)
		if err := l.on(ctx, 0, metadata.WriteLock, 7, 0, false); !errors.Is(err, syscall.EHOSTUNREACH) {
			t.Errorf("a lock without an answer = %v", err)
		}
		l.handedOn(t)
	})
	t.Run("the owner locks again", func(t *testing.T) {
		t.Parallel()
		l := unlocked(t)
		must(t, "the first lock", l.on(ctx, 1, metadata.WriteLock, 9, 0, false))
		l.interruptedWait(t)
		must(t, "unlock", l.on(ctx, 1, metadata.Unlocked, 9, 0, false))
		again := make(chan error, 1)
		go func() { again <- l.on(ctx, 0, metadata.WriteLock, 7, 0, true) }()
		asked := l.home.asked.Load()
		eventually(t, "the cancel is retried", func() bool { return l.home.asked.Load() > asked+1 })
		l.home.away.Store(false)
		must(t, "the owner", <-again)
		l.held(t, "the owner has it")
		must(t, "unlock", l.unlockAll(ctx))
		l.handedOn(t)
	})
	t.Run("the owner has another lock", func(t *testing.T) {
		t.Parallel()
		l := unlocked(t)
		must(t, "the first lock", l.on(ctx, 1, metadata.ReadLock, 9, 0, false))
		must(t, "the owner's lock", l.on(ctx, 0, metadata.ReadLock, 7, 0, false))
		l.interruptedWait(t)
		must(t, "unlock of the first", l.on(ctx, 1, metadata.Unlocked, 9, 0, false))
		l.home.away.Store(false)
		must(t, "the owner's next lock", l.on(ctx, 0, metadata.ReadLock, 7, 20, false)) // once the home has answered
		if err := l.on(ctx, 1, metadata.WriteLock, 9, 0, false); !errors.Is(err, syscall.EAGAIN) {
			t.Errorf("the owner's other lock has ended: another node gets %v", err)
		}
		must(t, "unlock of all", l.unlockAll(ctx))
		l.handedOn(t)
	})
}
