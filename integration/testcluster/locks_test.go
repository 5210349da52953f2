package testcluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// lockOf returns an fcntl lock on n bytes from off.
func lockOf(typ metadata.LockType, owner, off, n uint64) metadata.Lock {
	return metadata.Lock{Type: typ, Owner: owner, Start: off, End: off + n - 1, PID: 4711}
}

func lock(n *Node, ino metadata.Ino, l metadata.Lock) error {
	return n.Client.Lock(context.Background(), ino, l, false)
}

func wantLock(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// later starts a blocking lock call and returns a channel for its result.
func later(ctx context.Context, n *Node, ino metadata.Ino, l metadata.Lock) <-chan error {
	done := make(chan error, 1)
	go func() { done <- n.Client.Lock(ctx, ino, l, true) }()
	return done
}

func within(t *testing.T, what string, done <-chan error) error {
	t.Helper()
	select {
	case err := <-done:
		return err
	case <-time.After(Patience):
		t.Fatalf("%s: not in %v", what, Patience)
		return nil
	}
}

func waiters(t *testing.T, home *Node, n int) {
	t.Helper()
	Eventually(t, fmt.Sprint(n, " wait"), func() bool { return home.Home().FileLocks().Waiters == n })
}

// lockFile makes a file that all nodes have open.
func lockFile(t *testing.T, c *Cluster, name string) metadata.Ino {
	t.Helper()
	a := put(t, c.Nodes[1], metadata.RootIno, name, []byte("x"), metadata.Layout{})
	for _, n := range c.Nodes {
		openFile(t, n, a.Ino)
	}
	return a.Ino
}

// TestLocks: locks of several nodes exclude each other; waiters are served in order; closing a file, or losing a
// node, releases its locks.
func TestLocks(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	ino := lockFile(t, c, "f")
	wantLock(t, "the first", lock(c.Nodes[1], ino, lockOf(metadata.WriteLock, 1, 1<<30, 10)), nil)
	wantLock(t, "the same owner on another node", lock(c.Nodes[2], ino, lockOf(metadata.ReadLock, 1, 1<<30+9, 1)), syscall.EAGAIN)
	wantLock(t, "other bytes", lock(c.Nodes[2], ino, lockOf(metadata.ReadLock, 1, 1<<30+10, 1)), nil)
	node, l, err := c.Nodes[3].Client.TestLock(ctx, ino, lockOf(metadata.WriteLock, 1, 0, metadata.MaxLockEnd))
	if err != nil || node != 1 || l.Start != 1<<30 || l.PID != 4711 {
		t.Errorf("TestLock = %d, %+v, %v", node, l, err)
	}
	two := later(ctx, c.Nodes[2], ino, lockOf(metadata.WriteLock, 2, 1<<30, 1))
	waiters(t, c.Nodes[0], 1)
	three := later(ctx, c.Nodes[3], ino, lockOf(metadata.WriteLock, 2, 1<<30, 1))
	waiters(t, c.Nodes[0], 2)
	short, cancel := context.WithCancel(ctx)
	four := later(short, c.Nodes[0], ino, lockOf(metadata.WriteLock, 2, 1<<30, 1))
	waiters(t, c.Nodes[0], 3)
	cancel()
	wantLock(t, "interrupted", within(t, "an interrupt", four), syscall.EINTR)
	waiters(t, c.Nodes[0], 2)
	if err := c.Nodes[1].Client.UnlockAll(ctx, ino, metadata.PosixLock, 1); err != nil {
		t.Error(err)
	}
	wantLock(t, "the first that waits", within(t, "a turn", two), nil)
	waiters(t, c.Nodes[0], 1)
	c.Cut(2)
	wantLock(t, "when a node is given up", within(t, "a turn", three), nil)
	if n, _ := c.Nodes[0].View().Map.Node(2); n.State != cluster.Down {
		t.Errorf("node 2 is %v", n.State)
	}
	f := openFile(t, c.Nodes[3], ino)
	closeFile(t, f)
	wantLock(t, "another use has it open", lock(c.Nodes[1], ino, lockOf(metadata.ReadLock, 1, 1<<30, 1)), syscall.EAGAIN)
	f = openFile(t, c.Nodes[3], ino)
	closeFile(t, f)
	closeFile(t, f) // the last close
	Eventually(t, "who has closed has no locks", func() bool {
		return lock(c.Nodes[1], ino, lockOf(metadata.ReadLock, 1, 1<<30, 1)) == nil
	})
	wantLock(t, "a file that is not open", lock(c.Nodes[3], ino, lockOf(metadata.ReadLock, 1, 0, 1)), syscall.ENOLCK)
}

// TestLocksOutliveHome: locks and their waiters survive a restart of their home.
func TestLocksOutliveHome(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	ino := lockFile(t, c, "f")
	for own := range uint64(3) {
		wantLock(t, "before", lock(c.Nodes[1], ino, lockOf(metadata.WriteLock, own, own*10, 5)), nil)
	}
	wantLock(t, "before", lock(c.Nodes[3], ino, lockOf(metadata.ReadLock, 1, 100, 5)), nil)
	wantLock(t, "before", lock(c.Nodes[1], ino, lockOf(metadata.Unlocked, 1, 12, 1)), nil)
	two := later(ctx, c.Nodes[2], ino, lockOf(metadata.WriteLock, 9, 0, 1))
	waiters(t, c.Nodes[0], 1)
	for range 2 {
		c.Kill(t, 0)
		home := c.Revive(t, 0)
		wantLock(t, "after", lock(c.Nodes[3], ino, lockOf(metadata.ReadLock, 1, 10, 5)), syscall.EAGAIN)
		wantLock(t, "after", lock(c.Nodes[3], ino, lockOf(metadata.WriteLock, 1, 12, 1)), nil)
		wantLock(t, "after", lock(c.Nodes[3], ino, lockOf(metadata.Unlocked, 1, 12, 1)), nil)
		wantLock(t, "after", lock(c.Nodes[1], ino, lockOf(metadata.WriteLock, 1, 100, 1)), syscall.EAGAIN)
		if s := home.Home().FileLocks(); s.Locks != 5 {
			t.Errorf("%+v, want 5 locks", s)
		}
		waiters(t, home, 1)
	}
	wantLock(t, "the end of the first", lock(c.Nodes[1], ino, lockOf(metadata.Unlocked, 0, 0, 5)), nil)
	wantLock(t, "who has waited all the time", within(t, "a turn", two), nil)
	c.Kill(t, 2) // its holder restarts at once
	c.Revive(t, 2)
	Eventually(t, "a client that starts again has no locks", func() bool {
		return lock(c.Nodes[1], ino, lockOf(metadata.WriteLock, 7, 0, 1)) == nil
	})
}

// TestManyWaiters: with more waiters on every node than a connection can carry calls, each gets the lock once, and
// metadata calls are answered meanwhile.
func TestManyWaiters(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	ino := lockFile(t, c, "f")
	const each = 100
	wantLock(t, "the first", lock(c.Nodes[0], ino, lockOf(metadata.WriteLock, 1<<40, 0, 10)), nil)
	var inside, turns atomic.Int32
	var wg sync.WaitGroup
	for i, n := range c.Nodes {
		for k := range uint64(each) {
			wg.Go(func() {
				typ := metadata.WriteLock
				if k%3 == 0 {
					typ = metadata.ReadLock
				}
				if err := n.Client.Lock(ctx, ino, lockOf(typ, k, 0, 10), true); err != nil {
					t.Errorf("waiter %d of node %d: %v", k, i, err)
					return
				}
				if now := inside.Add(1); typ == metadata.WriteLock && now != 1 {
					t.Errorf("%d are inside with a writer", now)
				}
				turns.Add(1)
				inside.Add(-1)
				if err := lock(n, ino, lockOf(metadata.Unlocked, k, 0, 10)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	waiters(t, c.Nodes[0], 4*each)
	for _, n := range c.Nodes {
		if _, err := n.Client.Getattr(ctx, ino); err != nil {
			t.Error(err)
		}
	}
	wantLock(t, "the end of the first", lock(c.Nodes[0], ino, lockOf(metadata.Unlocked, 1<<40, 0, 10)), nil)
	wg.Wait()
	if turns.Load() != 4*each {
		t.Errorf("%d turns, want %d", turns.Load(), 4*each)
	}
	if s := c.Nodes[0].Home().FileLocks(); s.Locks != 0 || s.Waiters != 0 {
		t.Errorf("at the end: %+v", s)
	}
}

// TestLockDeadlock: a cycle of waiters over three nodes is detected.
func TestLockDeadlock(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx := context.Background()
	a, b := lockFile(t, c, "a"), lockFile(t, c, "b")
	wantLock(t, "first", lock(c.Nodes[1], a, lockOf(metadata.WriteLock, 1, 0, 1)), nil)
	wantLock(t, "second", lock(c.Nodes[2], b, lockOf(metadata.WriteLock, 1, 0, 1)), nil)
	one := later(ctx, c.Nodes[1], b, lockOf(metadata.WriteLock, 1, 0, 1))
	waiters(t, c.Nodes[0], 1)
	two := later(ctx, c.Nodes[2], a, lockOf(metadata.WriteLock, 1, 0, 1))
	wantLock(t, "the circle", within(t, "an answer", two), syscall.EDEADLK)
	wantLock(t, "the end of the second", lock(c.Nodes[2], b, lockOf(metadata.Unlocked, 1, 0, 1)), nil)
	wantLock(t, "the first", within(t, "a turn", one), nil)
}
