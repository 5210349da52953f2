package locks

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	metalocks "github.com/bivouacfs/bivouac/metadata/locks"
)

var (
	ctx  = context.Background()
	live = metadata.LiveIno(3, 5000)
)

// fakeHome is the home of all live files, and the files themselves.
type fakeHome struct {
	*metalocks.Locks
	away  atomic.Bool // does not answer
	dead  atomic.Bool // the cluster map has given it up
	calls atomic.Int64
	held  atomic.Int64 // operations that keep the file open
	// unlocking, unless nil, is called with each unlock by a node; its error is the reply.
	unlocking func(by metadata.Holder, q metadata.LockReq) error

	mu    sync.Mutex
	steps []string // under mu
}

func (h *fakeHome) Lock(ctx context.Context, by metadata.Holder, q metadata.LockReq) (metadata.LockAnswer, error) {
	h.calls.Add(1)
	if ctx.Err() != nil {
		return metadata.LockAnswer{}, syscall.EINTR
	}
	if h.away.Load() {
		return metadata.LockAnswer{}, syscall.EHOSTUNREACH
	}
	if q.Type == metadata.Unlocked {
		h.step("unlock")
		if h.unlocking != nil {
			if err := h.unlocking(by, q); err != nil {
				return metadata.LockAnswer{}, err
			}
		}
	}
	return h.Locks.Lock(ctx, by, q)
}

func (h *fakeHome) step(s string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.steps = append(h.steps, s)
}

type fakeFiles struct{ home *fakeHome }

func (f fakeFiles) Locks(metadata.Ino) (metadata.Locks, error) { return f.home, nil }
func (f fakeFiles) Flush(context.Context, metadata.Ino) error  { f.home.step("flush"); return nil }
func (f fakeFiles) Drain(context.Context) error                { f.home.step("drain"); return nil }
func (f fakeFiles) Hold(metadata.Ino) func() {
	f.home.held.Add(1)
	return func() { f.home.held.Add(-1) }
}
func (f fakeFiles) HomeAlive(metadata.NodeID) error {
	if f.home.dead.Load() {
		return syscall.EHOSTDOWN
	}
	return nil
}

// newLockers returns the Lockers of two nodes with one home.
func newLockers(t *testing.T) (*fakeHome, [2]*Locker) {
	t.Helper()
	l := logrus.New()
	l.SetOutput(io.Discard)
	var ls [2]*Locker
	h := &fakeHome{}
	h.Locks = metalocks.New(metalocks.Config{
		Wake: func(_ context.Context, id metadata.NodeID, ws []uint64) error {
			ls[id].Wake(ws)
			return nil
		},
	})
	serving, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { h.Serve(serving) })
	for i := range ls {
		ls[i] = New(Config{Holder: metadata.Holder{Node: metadata.NodeID(i), Run: 1}, Files: fakeFiles{h}, Log: logrus.NewEntry(l)})
	}
	t.Cleanup(func() {
		for _, l := range ls {
			l.Close()
		}
		cancel()
		wg.Wait()
		if n := h.held.Load(); n != 0 {
			t.Errorf("%d uses of the file are left", n)
		}
	})
	return h, ls
}

// TestLateAnswers: replies of the home may arrive in any order, also around the report of locks to a restarted home.
func TestLateAnswers(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 1000 {
		var tb table
		var want metalocks.Set
		tb.init(0)
		type granted struct {
			q       metadata.LockReq
			version uint64
		}
		var late []granted
		for version := range uint64(6) {
			from := rng.Uint64N(3)
			l := metadata.Lock{Type: metadata.LockType(rng.IntN(3)), Owner: rng.Uint64N(2), Start: from, End: from + rng.Uint64N(3)}
			q := metadata.LockReq{Ino: live, Lock: l}
			tb.begin(q)
			late = append(late, granted{q, version + 1})
			want = want.With(l)
		}
		rng.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
		for _, g := range late {
			tb.granted(g.q, g.version)
			if rng.IntN(3) == 0 {
				tb.held(live)
			}
		}
		for _, g := range late {
			tb.end(g.q)
		}
		if got := tb.held(live); !slices.Equal(got, want) {
			t.Fatalf("seed %d: held %v, want %v", seed, got, want)
		}
	}
}

// TestInterruptedConversion: a flock conversion is granted after its caller was interrupted, while the unlock of the
// previous lock is still retried, which then ends the new lock: the caller must not believe that it holds the new lock.
func TestInterruptedConversion(t *testing.T) {
	h, ls := newLockers(t)
	flock := func(typ metadata.LockType) metadata.Lock {
		return metadata.Lock{Kind: metadata.FlockLock, Type: typ, Owner: 7, End: metadata.MaxLockEnd}
	}
	for _, l := range ls {
		if err := l.Lock(ctx, live, flock(metadata.ReadLock), false); err != nil {
			t.Fatal(err)
		}
	}
	waiting, interrupt := context.WithCancel(ctx)
	var unlocks atomic.Int64
	h.unlocking = func(by metadata.Holder, q metadata.LockReq) error {
		if by.Node != 0 || unlocks.Add(1) > 1 {
			return nil
		}
		if _, err := h.Locks.Lock(ctx, by, q); err != nil { // it is granted, and the reply is lost
			t.Error(err)
		}
		if err := ls[1].Lock(ctx, live, flock(metadata.Unlocked), false); err != nil {
			t.Error(err)
		}
		interrupt()
		return syscall.EHOSTUNREACH
	}
	if err := ls[0].Lock(waiting, live, flock(metadata.WriteLock), true); err == nil {
		t.Error("the lock counts as granted")
	}
	if err := ls[1].Lock(ctx, live, flock(metadata.WriteLock), true); err != nil {
		t.Errorf("the other node: %v", err)
	}
}

func lockOf(typ metadata.LockType, owner uint64) metadata.Lock {
	return metadata.Lock{Kind: metadata.PosixLock, Type: typ, Owner: owner, End: metadata.MaxLockEnd}
}

// TestWait: a waiter gets the lock after the unlock, which is sent after the writes.
func TestWait(t *testing.T) {
	h, ls := newLockers(t)
	if err := ls[0].Lock(ctx, live, lockOf(metadata.WriteLock, 7), false); err != nil {
		t.Fatal(err)
	}
	if err := ls[1].Lock(ctx, live, lockOf(metadata.WriteLock, 9), false); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a second lock = %v, want EAGAIN", err)
	}
	got := make(chan error, 1)
	go func() { got <- ls[1].Lock(ctx, live, lockOf(metadata.WriteLock, 9), true) }()
	if err := ls[0].UnlockAll(ctx, live, metadata.PosixLock, 7); err != nil {
		t.Error(err)
	}
	if err := <-got; err != nil {
		t.Errorf("the waiter gets %v", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.steps) < 3 || h.steps[0] != "flush" || h.steps[1] != "drain" || h.steps[2] != "unlock" {
		t.Errorf("steps of the unlock: %v", h.steps)
	}
	if n := len(ls[0].Held(live)); n != 0 {
		t.Errorf("%d locks are mirrored after the unlock", n)
	}
	if n := len(ls[1].Held(live)); n != 1 {
		t.Errorf("%d locks of the new holder are mirrored, want 1", n)
	}
}

// TestUnlockIsRetried: an unlock that the home does not answer is no error, and is
// retried before the owner gets a new lock.
func TestUnlockIsRetried(t *testing.T) {
	h, ls := newLockers(t)
	if err := ls[0].Lock(ctx, live, lockOf(metadata.WriteLock, 7), false); err != nil {
		t.Fatal(err)
	}
	h.away.Store(true)
	if err := ls[0].UnlockAll(ctx, live, metadata.PosixLock, 7); err != nil {
		t.Errorf("UnlockAll = %v, want nil", err)
	}
	again := make(chan error, 1)
	go func() { again <- ls[0].Lock(ctx, live, lockOf(metadata.WriteLock, 7), false) }()
	h.away.Store(false)
	if err := <-again; err != nil {
		t.Errorf("the owner gets %v", err)
	}
	if err := ls[1].Lock(ctx, live, lockOf(metadata.WriteLock, 9), false); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("the retry has ended the new lock: another node gets %v", err)
	}
}

// TestHomeIsGivenUp: retries end, and a home that returns does not get the lock.
func TestHomeIsGivenUp(t *testing.T) {
	h, ls := newLockers(t)
	if err := ls[0].Lock(ctx, live, lockOf(metadata.WriteLock, 7), false); err != nil {
		t.Fatal(err)
	}
	h.away.Store(true)
	if err := ls[0].UnlockAll(ctx, live, metadata.PosixLock, 7); err != nil {
		t.Error(err)
	}
	h.dead.Store(true)
	if done := ls[0].table.retries(metadata.LockReq{Ino: live, Lock: lockOf(metadata.Unlocked, 7)}); done != nil {
		<-done
	}
	if got := ls[0].Held(live); len(got) != 0 {
		t.Errorf("a home that comes back gets %v", got)
	}
}

// TestInterruptedWait: a signal ends the wait with EINTR, and the home drops the request.
func TestInterruptedWait(t *testing.T) {
	h, ls := newLockers(t)
	if err := ls[0].Lock(ctx, live, lockOf(metadata.WriteLock, 7), false); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithCancel(ctx)
	cancel()
	if err := ls[1].Lock(short, live, lockOf(metadata.WriteLock, 9), true); !errors.Is(err, syscall.EINTR) {
		t.Errorf("an interrupted wait = %v, want EINTR", err)
	}
	if n := h.Stats().Waiters; n != 0 {
		t.Errorf("%d wait at the home", n)
	}
}

// TestUnlockWithoutLocks makes no call.
func TestUnlockWithoutLocks(t *testing.T) {
	h, ls := newLockers(t)
	if err := ls[0].UnlockAll(ctx, live, metadata.FlockLock, 7); err != nil || h.calls.Load() != 0 {
		t.Errorf("UnlockAll = %v after %d calls, want none", err, h.calls.Load())
	}
}

// TestSealedFiles: files of datasets are locked locally, without a home.
func TestSealedFiles(t *testing.T) {
	h, ls := newLockers(t)
	ino := metadata.SealedIno(1, 0, 9)
	if err := ls[0].Lock(ctx, ino, lockOf(metadata.WriteLock, 7), false); err != nil {
		t.Fatal(err)
	}
	if err := ls[0].Lock(ctx, ino, lockOf(metadata.WriteLock, 9), false); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("a second owner on this node = %v, want EAGAIN", err)
	}
	if _, held, err := ls[0].Test(ctx, ino, lockOf(metadata.ReadLock, 9)); err != nil || held.Owner != 7 {
		t.Errorf("Test = %+v, %v, want the lock of owner 7", held, err)
	}
	if err := ls[1].Lock(ctx, ino, lockOf(metadata.WriteLock, 9), false); err != nil || h.calls.Load() != 0 {
		t.Errorf("another node gets %v, the home %d calls", err, h.calls.Load())
	}
}

// TestConversion: two nodes that hold shared flocks and both want to write do not deadlock, because a conversion that
// has to wait releases the old lock; a non-blocking conversion fails, and also loses the old lock.
func TestConversion(t *testing.T) {
	for _, waits := range []bool{true, false} {
		h, ls := newLockers(t)
		flock := func(node int, typ metadata.LockType, waits bool) error {
			return ls[node].Lock(ctx, live, metadata.Lock{Kind: metadata.FlockLock, Type: typ, Owner: 7, End: metadata.MaxLockEnd}, waits)
		}
		for node := range ls {
			if err := flock(node, metadata.ReadLock, false); err != nil {
				t.Fatal(err)
			}
		}
		if !waits {
			if err := flock(0, metadata.WriteLock, false); !errors.Is(err, syscall.EAGAIN) {
				t.Errorf("a conversion beside another reader = %v, want EAGAIN", err)
			}
			if err := flock(1, metadata.WriteLock, false); err != nil {
				t.Errorf("the conversion of the other reader = %v", err)
			}
		} else {
			var wg sync.WaitGroup
			for node := range ls {
				wg.Go(func() {
					err := errors.Join(flock(node, metadata.WriteLock, true), flock(node, metadata.Unlocked, false))
					if err != nil {
						t.Errorf("node %d: %v", node, err)
					}
				})
			}
			wg.Wait()
		}
		if s := h.Stats(); s.Waiters != 0 || !waits && s.Locks != 1 || waits && s.Locks != 0 {
			t.Errorf("the home has %+v", s)
		}
		for node, want := range []int{0, h.Stats().Locks} {
			if got := ls[node].Held(live); len(got) != want {
				t.Errorf("node %d would report %v to a home that restarts, want %d", node, got, want)
			}
		}
	}
}
