package fsclient_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// silentHome is a home that can leave calls unanswered, as if the connection were broken.
type silentHome struct {
	*clienttest.Home
	away      atomic.Bool
	awayAfter atomic.Bool  // unreachable after it has placed the next append
	mute      atomic.Bool  // the reply to the next lock is lost
	asked     atomic.Int64 // calls while unreachable

	mu     sync.Mutex
	answer func() // under mu: called once between a lock and its reply
}

func (h *silentHome) silent() error {
	if h.away.Load() {
		h.asked.Add(1)
		return syscall.EHOSTUNREACH
	}
	return nil
}

func (h *silentHome) Lock(ctx context.Context, by metadata.Holder, q metadata.LockReq) (metadata.LockAnswer, error) {
	if err := h.silent(); err != nil {
		return metadata.LockAnswer{}, err
	}
	a, err := h.Home.Lock(ctx, by, q)
	h.mu.Lock()
	answer := h.answer
	h.answer = nil
	h.mu.Unlock()
	if answer != nil {
		answer()
	}
	if h.mute.CompareAndSwap(true, false) {
		return metadata.LockAnswer{}, syscall.EHOSTUNREACH
	}
	return a, err
}

func (h *silentHome) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	if err := h.silent(); err != nil {
		return metadata.Attr{}, err
	}
	return h.Home.Setattr(ctx, ino, c)
}

func (h *silentHome) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	if err := h.silent(); err != nil {
		return metadata.Place{}, err
	}
	pl, err := h.Home.Append(ctx, by, q)
	if q.Len > 0 && h.awayAfter.CompareAndSwap(true, false) {
		h.away.Store(true)
	}
	return pl, err
}

// lockJob is two nodes with a file open on both. Node 1 is its home and has its data, and can be unreachable for node
// 0. Owner 7 of node 0 has locked the file.
type lockJob struct {
	*job
	ms   []*meteredStore
	cs   []*fsclient.Client
	home *silentHome
	f    *fsclient.File // on node 0
}

func locked(t *testing.T, kind metadata.LockKind) *lockJob {
	t.Helper()
	l := &lockJob{job: newJob(t, 2)}
	l.home = &silentHome{Home: l.homes[1]}
	for i, d := range l.data {
		m := &meteredStore{Store: d}
		l.data[i], l.ms = m, append(l.ms, m)
	}
	near := l.client(t, 1, nil)
	l.meta[1] = l.home
	l.cs = []*fsclient.Client{l.client(t, 0, nil), near}
	var err error
	l.f, _, err = l.cs[0].CreateOpen(ctx, dirOn(t, l.cs[0], 1), "f", metadata.New{
		Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Local, Node: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	open(t, l.cs[1], l.f.Ino())
	if err := l.lock(0, kind, 7); err != nil {
		t.Fatal(err)
	}
	return l
}

// lock locks the file for an owner on a node, without waiting.
func (l *lockJob) lock(node int, kind metadata.LockKind, owner uint64) error {
	return l.cs[node].Lock(ctx, l.f.Ino(), metadata.Lock{Kind: kind, Type: metadata.WriteLock, Owner: owner, End: metadata.MaxLockEnd}, false)
}

// held checks that node 0 has the file locked.
func (l *lockJob) held(t *testing.T, when string) {
	t.Helper()
	if err := l.lock(1, metadata.PosixLock, 9); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%s: locked on the other node: %v, want EAGAIN", when, err)
	}
}

// handedOn waits until the other node can lock the file.
func (l *lockJob) handedOn(t *testing.T) {
	t.Helper()
	eventually(t, "the other node has the lock", func() bool { return l.lock(1, metadata.PosixLock, 9) == nil })
}

func (l *lockJob) unlockAll(ctx context.Context) error {
	return l.cs[0].UnlockAll(ctx, l.f.Ino(), metadata.PosixLock, 7)
}

// TestUnlocksAreRetried: an unlock that is interrupted or unanswered is retried, after the writes, and never ends a
// later lock.
func TestUnlocksAreRetried(t *testing.T) {
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	t.Run("an interrupted close", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		w := l.f.Writer()
		want := buffered(t, w)
		gate := make(chan struct{})
		l.ms[1].set(nil, gate)
		if err := w.Flush(canceled); !errors.Is(err, syscall.EINTR) {
			t.Errorf("Flush = %v, want EINTR", err)
		}
		if err := l.unlockAll(canceled); err != nil {
			t.Errorf("unlock in a close = %v", err)
		}
		if err := l.f.Close(canceled); !errors.Is(err, syscall.EINTR) {
			t.Errorf("Close = %v, want EINTR", err)
		}
		l.held(t, "before the data has arrived")
		close(gate)
		l.handedOn(t)
		if got := read(t, l.cs[1], l.f.Ino()); !bytes.Equal(got, want) {
			t.Errorf("the next holder reads %d bytes, want %d, or other ones", len(got), len(want))
		}
	})
	t.Run("buffered writes of another file", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		g := onNode(t, l.cs[0], "g", 1)
		want := buffered(t, g.Writer())
		gate := make(chan struct{})
		l.ms[1].set(nil, gate)
		if err := errors.Join(l.unlockAll(canceled), l.f.Close(ctx)); err != nil {
			t.Errorf("unlock in a close = %v", err)
		}
		l.held(t, "before the data has arrived")
		close(gate)
		l.handedOn(t)
		if got := l.object(t, 1, g.Ino(), 2000); !bytes.Equal(got, want) {
			t.Errorf("%d bytes have arrived, want %d, or other ones", len(got), len(want))
		}
	})
	t.Run("written through another descriptor", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		want := buffered(t, l.f.Writer())
		if err := l.unlockAll(ctx); err != nil { // a read-only descriptor is closed
			t.Error(err)
		}
		l.handedOn(t)
		if got := read(t, l.cs[1], l.f.Ino()); !bytes.Equal(got, want) {
			t.Errorf("the next holder reads %d bytes, want %d, or other ones", len(got), len(want))
		}
	})
	t.Run("a lock to write becomes one to read", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		want := buffered(t, l.f.Writer())
		shared := metadata.Lock{Type: metadata.ReadLock, Owner: 7, End: metadata.MaxLockEnd}
		if err := l.cs[0].Lock(ctx, l.f.Ino(), shared, false); err != nil {
			t.Error(err)
		}
		shared.Owner = 9
		if err := l.cs[1].Lock(ctx, l.f.Ino(), shared, false); err != nil {
			t.Errorf("a reader on the other node = %v", err)
		}
		if got := read(t, l.cs[1], l.f.Ino()); !bytes.Equal(got, want) {
			t.Errorf("it reads %d bytes, want %d, or other ones", len(got), len(want))
		}
	})
	t.Run("a home that is away", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		l.home.away.Store(true)
		if err := l.unlockAll(ctx); err != nil {
			t.Errorf("unlock in a close = %v", err)
		}
		eventually(t, "the home is called again", func() bool { return l.home.asked.Load() > 2 })
		l.home.away.Store(false)
		l.handedOn(t)
	})
	t.Run("a home that is given up", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.FlockLock)
		l.home.away.Store(true)
		if err := l.cs[0].UnlockAll(ctx, l.f.Ino(), metadata.FlockLock, 7); err != nil {
			t.Errorf("unlock in a close = %v", err)
		}
		m := l.view.Load().Map.WithState(l.f.Ino().Home(), cluster.Down, "")
		l.view.Store(&cluster.View{Version: 2, Map: m})
		eventually(t, "a home that comes back gets no lock", func() bool {
			r := l.cs[0].Recall(metadata.Recall{Home: l.f.Ino().Home(), Only: []metadata.Ino{l.f.Ino()}})
			return len(r.Files) == 1 && len(r.Files[0].Locks) == 0
		})
	})
	t.Run("the owner locks again", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		l.home.away.Store(true)
		if err := l.unlockAll(ctx); err != nil {
			t.Errorf("unlock in a close = %v", err)
		}
		again := make(chan error, 1)
		go func() { again <- l.lock(0, metadata.PosixLock, 7) }()
		eventually(t, "the home is called again", func() bool { return l.home.asked.Load() > 2 })
		l.home.away.Store(false)
		if err := <-again; err != nil {
			t.Errorf("the owner gets %v", err)
		}
		l.held(t, "after the retry")
	})
	t.Run("granted after an unlock of all", func(t *testing.T) {
		t.Parallel()
		l := locked(t, metadata.PosixLock)
		l.home.mu.Lock()
		l.home.answer = func() { // all end before the owner learns that it has one more
			if err := l.unlockAll(ctx); err != nil {
				t.Error(err)
			}
			if err := l.home.Home.Locks.(interface {
				Resume(metadata.NodeID, metadata.Ino, []metadata.Lock) []metadata.Lock
			}).Resume(0, l.f.Ino(), []metadata.Lock{{Type: metadata.WriteLock, Owner: 7, End: metadata.MaxLockEnd}}); err != nil {
				t.Error(err)
			}
		}
		l.home.mu.Unlock()
		if err := l.lock(0, metadata.PosixLock, 7); err != nil {
			t.Fatal(err)
		}
		l.held(t, "the owner has a lock")
		if err := l.unlockAll(ctx); err != nil {
			t.Error(err)
		}
		l.handedOn(t)
	})
}
