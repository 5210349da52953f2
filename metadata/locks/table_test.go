package locks

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

var start = time.Unix(1000, 0)

// table is a Table that records the waiters it has woken.
type table struct {
	*Table
	t     *testing.T
	woken []string
	now   time.Time
}

func newTable(t *testing.T) *table {
	tt := &table{t: t, now: start}
	tt.Table = NewTable(0, func(n metadata.NodeID, w uint64) { tt.woken = append(tt.woken, fmt.Sprint(n, "/", w)) })
	return tt
}

// lk returns an fcntl lock.
func lk(typ metadata.LockType, own uint64, from, to uint64) metadata.Lock {
	return metadata.Lock{Type: typ, Owner: own, Start: from, End: to, PID: uint32(own)}
}

const (
	rd  = metadata.ReadLock
	wr  = metadata.WriteLock
	un  = metadata.Unlocked
	all = metadata.MaxLockEnd
)

// ask requests a lock and wants "granted", "waits" or an errno.
func (tt *table) ask(node metadata.NodeID, ino metadata.Ino, l metadata.Lock, waiter uint64, want any) {
	tt.t.Helper()
	a, err := tt.Lock(node, metadata.LockReq{Ino: ino, Lock: l, Waiter: waiter}, tt.now)
	var got any = "waits"
	var no syscall.Errno
	switch {
	case errors.As(err, &no):
		got = no
	case a.Granted:
		got = "granted"
	}
	if got != want {
		tt.t.Errorf("lock %+v by node %d: %v, want %v", l, node, got, want)
	}
}

func (tt *table) wantWoken(want ...string) {
	tt.t.Helper()
	if fmt.Sprint(tt.woken) != fmt.Sprint(want) {
		tt.t.Errorf("woken %v, want %v", tt.woken, want)
	}
	tt.woken = nil
}

func TestRanges(t *testing.T) {
	tt := newTable(t)
	tt.ask(1, 9, lk(wr, 1, 0, 99), 0, "granted")
	tt.ask(1, 9, lk(un, 1, 40, 59), 0, "granted")
	tt.ask(2, 9, lk(wr, 1, 40, 59), 0, "granted")
	tt.ask(2, 9, lk(rd, 1, 39, 39), 0, syscall.EAGAIN)
	tt.ask(1, 9, lk(rd, 1, 60, 99), 0, "granted") // downgrade
	tt.ask(2, 9, lk(rd, 1, 60, 70), 0, "granted")
	tt.ask(1, 9, lk(wr, 1, 60, 99), 0, syscall.EAGAIN) // an upgrade is refused
	tt.ask(2, 9, lk(un, 1, 0, all), 0, "granted")
	tt.ask(1, 9, lk(wr, 1, 60, 99), 0, "granted")
	tt.ask(1, 9, lk(wr, 1, 40, 59), 0, "granted")
	if s := tt.Stats(); s.Locks != 1 {
		t.Errorf("%+v, want one lock of all parts", s)
	}
	if node, h := tt.Test(2, 9, lk(rd, 1, 50, 50)); node != 1 || h.Type != wr || h.Start != 0 || h.End != 99 || h.PID != 1 {
		t.Errorf("Test = %d, %+v", node, h)
	}
	if _, h := tt.Test(1, 9, lk(wr, 1, 0, all)); h.Type != un {
		t.Errorf("Test of what its owner has = %+v", h)
	}
	tt.ask(2, 9, lk(rd, 1, 200, 209), 0, "granted")
	tt.ask(2, 9, lk(rd, 1, 120, 129), 0, "granted")
	if _, h := tt.Test(3, 9, lk(wr, 1, 110, all)); h.Start != 120 || h.End != 129 {
		t.Errorf("Test = %+v, want the first that is in the way", h)
	}
	flock := metadata.Lock{Kind: metadata.FlockLock, Type: wr, Owner: 7, End: all}
	tt.ask(2, 9, flock, 0, "granted") // locks of different kinds do not conflict
	tt.ask(1, 9, flock, 0, syscall.EAGAIN)
	tt.ask(1, 9, metadata.Lock{Start: 5, End: 4}, 0, syscall.EINVAL)
	tt.ask(1, 9, metadata.Lock{End: all + 1}, 0, syscall.EINVAL)
	tt.ask(1, 9, metadata.Lock{Type: 3}, 0, syscall.EINVAL)
	tt.Closed(1, 9, tt.now)
	tt.Closed(2, 9, tt.now)
	if s := tt.Stats(); s != (Stats{}) || len(tt.holds)+len(tt.waits) != 0 {
		t.Errorf("at the end: %+v", s)
	}
}

// TestQueue: requests are granted in order of arrival, readers together; a repeated request keeps its place in the
// queue, or its lock.
func TestQueue(t *testing.T) {
	tt := newTable(t)
	tt.ask(1, 9, lk(rd, 1, 0, all), 0, "granted")
	tt.ask(2, 9, lk(wr, 2, 0, all), 1, "waits")
	tt.ask(3, 9, lk(rd, 3, 0, all), 1, "waits") // behind the writer
	tt.ask(4, 9, lk(rd, 4, 0, all), 1, "waits")
	tt.ask(2, 9, lk(wr, 2, 0, all), 1, "waits")
	tt.ask(5, 9, lk(rd, 5, 0, all), 0, "granted") // a non-blocking request overtakes the queue
	tt.ask(5, 9, lk(un, 5, 0, all), 0, "granted")
	tt.ask(1, 9, lk(un, 1, 0, all), 0, "granted")
	tt.wantWoken("2/1")
	tt.ask(2, 9, lk(wr, 2, 0, all), 1, "granted")
	tt.ask(2, 9, lk(un, 2, 0, all), 0, "granted")
	tt.wantWoken("3/1", "4/1")
	tt.ask(2, 9, lk(wr, 2, 0, all), 2, "waits")
	tt.Closed(3, 9, tt.now)
	tt.Closed(4, 9, tt.now) // as when a node dies
	tt.wantWoken("2/2")
	tt.ask(3, 9, lk(wr, 3, 0, all), 2, "waits")
	tt.ask(4, 9, lk(wr, 4, 0, all), 2, "waits")
	tt.Closed(3, 9, tt.now)
	tt.ask(2, 9, lk(un, 2, 0, all), 0, "granted")
	tt.wantWoken("4/2")
}

func TestSoftPlace(t *testing.T) {
	tt := newTable(t)
	tt.ask(1, 9, lk(rd, 1, 0, all), 0, "granted")
	tt.ask(2, 9, lk(wr, 2, 0, all), 1, "waits")
	tt.ask(3, 8, lk(wr, 3, 0, all), 0, "granted")
	tt.ask(3, 9, lk(rd, 3, 0, all), 1, "granted") // it has a lock that others may wait for
	tt.ask(4, 9, lk(rd, 4, 0, all), 1, "waits")
	tt.ask(4, 9, lk(rd, 4, 0, all), 1, "granted") // no lock conflicts, and it has waited
}

// TestAskedBehindCancel: a request that arrives after the end of its wait neither waits nor gets a lock; the table
// forgets the cancelled wait when no such request can arrive any more.
func TestAskedBehindCancel(t *testing.T) {
	tt := newTable(t)
	giveUp := func(node metadata.NodeID, waiter uint64) {
		t.Helper()
		if a, err := tt.Lock(node, metadata.LockReq{Ino: 9, Lock: lk(wr, 5, 0, all), Waiter: waiter, Cancel: true}, tt.now); a.Granted || err != nil {
			t.Errorf("cancel = %+v, %v", a, err)
		}
	}
	giveUp(1, 100)
	tt.ask(1, 9, lk(wr, 5, 0, all), 100, syscall.EINTR)
	tt.ask(2, 9, lk(wr, 5, 0, all), 100, "granted") // from another node
	tt.ask(1, 9, lk(wr, 5, 0, all), 101, "waits")
	giveUp(1, 101)
	tt.ask(1, 9, lk(wr, 5, 0, all), 101, syscall.EINTR)
	tt.ask(2, 9, lk(un, 5, 0, all), 0, "granted")
	tt.wantWoken()
	if s := tt.Stats(); s != (Stats{}) {
		t.Errorf("%+v, want nothing", s)
	}
	for id := range uint64(100) {
		tt.now = tt.now.Add(lateFor / 10)
		giveUp(1, 200+id)
	}
	if n := len(tt.over.since); n > 22 {
		t.Errorf("%d are remembered", n)
	}
}

func TestCancel(t *testing.T) {
	tt := newTable(t)
	cancel := func(node metadata.NodeID, l metadata.Lock, waiter uint64) bool {
		t.Helper()
		a, err := tt.Lock(node, metadata.LockReq{Ino: 9, Lock: l, Waiter: waiter, Cancel: true}, tt.now)
		if err != nil {
			t.Error(err)
		}
		return a.Granted
	}
	tt.ask(1, 9, lk(rd, 1, 0, all), 0, "granted")
	tt.ask(2, 9, lk(wr, 2, 0, all), 1, "waits")
	tt.ask(3, 9, lk(rd, 3, 0, all), 1, "waits")
	if cancel(2, lk(wr, 2, 0, all), 1) {
		t.Error("what waits was granted")
	}
	tt.wantWoken("3/1")
	if !cancel(3, lk(rd, 3, 0, all), 1) {
		t.Error("what was granted is cancelled")
	}
	tt.ask(2, 9, lk(wr, 2, 0, all), 2, "waits")
	tt.now = tt.now.Add(staleAfter + 1)
	tt.ask(3, 9, lk(un, 3, 0, all), 0, "granted")
	tt.ask(1, 9, lk(un, 1, 0, all), 0, "granted")
	tt.wantWoken() // it has not asked for long
	if s := tt.Stats(); s != (Stats{}) {
		t.Errorf("%+v", s)
	}
}

func TestDeadlock(t *testing.T) {
	tt := newTable(t)
	tt.ask(1, 9, lk(wr, 1, 0, 9), 0, "granted")
	tt.ask(2, 9, lk(wr, 2, 10, 19), 0, "granted")
	tt.ask(3, 8, lk(wr, 3, 0, 9), 0, "granted")
	tt.ask(1, 9, lk(wr, 1, 10, 10), 1, "waits")
	tt.ask(2, 8, lk(rd, 2, 5, 5), 1, "waits")
	tt.ask(3, 9, lk(rd, 3, 3, 3), 1, syscall.EDEADLK)
	tt.ask(3, 9, lk(rd, 3, 3, 3), 0, syscall.EAGAIN)
	tt.ask(3, 9, lk(rd, 3, 30, 31), 1, "granted")
	// Two owners that hold read locks and want to write.
	tt.ask(4, 7, lk(rd, 4, 0, all), 0, "granted")
	tt.ask(5, 7, lk(rd, 5, 0, all), 0, "granted")
	tt.ask(4, 7, lk(wr, 4, 0, all), 1, "waits")
	tt.ask(5, 7, lk(wr, 5, 0, all), 1, syscall.EDEADLK)
	tt.Closed(5, 7, tt.now)
	tt.wantWoken("4/1")
	// flock does not report deadlocks.
	f := func(own uint64) metadata.Lock {
		return metadata.Lock{Kind: metadata.FlockLock, Type: wr, Owner: own, End: all}
	}
	tt.ask(1, 5, f(1), 0, "granted")
	tt.ask(2, 6, f(2), 0, "granted")
	tt.ask(1, 6, f(1), 1, "waits")
	tt.ask(2, 5, f(2), 1, "waits")
}

func TestResume(t *testing.T) {
	tt := newTable(t)
	if lost := tt.Resume(1, 9, []metadata.Lock{lk(wr, 1, 0, 9), lk(rd, 2, 20, 29)}); len(lost) != 0 {
		t.Errorf("lost %v", lost)
	}
	if lost := tt.Resume(2, 9, []metadata.Lock{lk(rd, 1, 5, 5), lk(rd, 1, 25, 25)}); len(lost) != 1 || lost[0].Start != 5 {
		t.Errorf("lost %v, want the one that node 1 has", lost)
	}
	tt.ask(3, 9, lk(wr, 1, 25, 25), 0, syscall.EAGAIN)
	tt.ask(3, 9, lk(wr, 1, 10, 19), 0, "granted")
}

// twin models locks byte by byte: the holders of each byte.
type twin [24]map[owner]metadata.LockType

func (w *twin) blocked(l held) bool {
	for b := l.Start; b <= min(l.End, uint64(len(w)-1)); b++ {
		for o, typ := range w[b] {
			if o != l.owner() && (typ == wr || l.Type == wr) {
				return true
			}
		}
	}
	return false
}

func (w *twin) put(l held) {
	for b := l.Start; b <= min(l.End, uint64(len(w)-1)); b++ {
		if w[b] == nil {
			w[b] = map[owner]metadata.LockType{}
		}
		if delete(w[b], l.owner()); l.Type != un {
			w[b][l.owner()] = l.Type
		}
	}
}

// TestTableAgainstTwin compares non-blocking requests, and the death of nodes, with a table of bytes, and with the
// locks that a client would remember.
func TestTableAgainstTwin(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	tt, w := newTable(t), &twin{}
	mirrors := map[metadata.NodeID]Set{}
	for step := range 20_000 {
		node := metadata.NodeID(rng.IntN(3))
		from := rng.Uint64N(uint64(len(w)))
		l := lk(metadata.LockType(rng.IntN(3)), rng.Uint64N(2), from, from+rng.Uint64N(uint64(len(w))-from))
		if l.End == uint64(len(w)-1) { // stands for all later bytes
			l.End = all
		}
		h := held{node, l}
		if rng.IntN(200) == 0 {
			tt.Closed(node, 9, tt.now)
			for own := range uint64(2) {
				w.put(held{node, lk(un, own, 0, all)})
			}
			delete(mirrors, node)
			continue
		}
		if _, got := tt.Test(node, 9, l); l.Type != un && (got.Type != un) != w.blocked(h) {
			t.Fatalf("step %d: Test(%+v) = %+v, blocked %t", step, h, got, w.blocked(h))
		}
		a, err := tt.Lock(node, metadata.LockReq{Ino: 9, Lock: l}, tt.now)
		if want := l.Type == un || !w.blocked(h); a.Granted != want || want != (err == nil) {
			t.Fatalf("step %d: Lock(%+v) = %+v, %v, want %t", step, h, a, err, want)
		}
		if a.Granted {
			w.put(h)
			mirrors[node] = mirrors[node].With(l)
		}
		if step%500 == 0 {
			again := newTable(t)
			for node, set := range mirrors {
				if lost := again.Resume(node, 9, set); len(lost) != 0 {
					t.Fatalf("step %d: node %d lost %v after a restart", step, node, lost)
				}
			}
			if again.Stats().Locks != tt.Stats().Locks {
				t.Fatalf("step %d: %+v after a restart, before %+v", step, again.Stats(), tt.Stats())
			}
		}
	}
}

// TestLocksWake: a waiter is woken when its lock is granted, and a fenced waiter is never granted one.
func TestLocksWake(t *testing.T) {
	woken := make(chan uint64, 1)
	l := New(Config{
		Ready: func(_ context.Context, by metadata.Holder, _ metadata.Ino, do func()) error {
			if by.Run == 0 {
				return syscall.ENOLCK
			}
			do()
			return nil
		},
		Wake: func(_ context.Context, node metadata.NodeID, ws []uint64) error {
			if node != 2 || len(ws) != 1 {
				t.Errorf("node %d is woken for %v", node, ws)
			}
			woken <- ws[0]
			return nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { l.Serve(ctx) })
	defer wg.Wait()
	defer cancel()
	q := metadata.LockReq{Ino: 9, Lock: lk(wr, 1, 0, all)}
	one, two := metadata.Holder{Node: 1, Run: 1}, metadata.Holder{Node: 2, Run: 1}
	if _, err := l.Lock(ctx, metadata.Holder{Node: 3}, q); !errors.Is(err, syscall.ENOLCK) {
		t.Errorf("Lock = %v, want ENOLCK", err)
	}
	if _, _, err := l.TestLock(ctx, metadata.Holder{Node: 3}, 9, q.Lock); !errors.Is(err, syscall.ENOLCK) {
		t.Errorf("TestLock = %v, want ENOLCK", err)
	}
	if a, err := l.Lock(ctx, one, q); err != nil || !a.Granted {
		t.Fatalf("Lock = %+v, %v", a, err)
	}
	if node, h, err := l.TestLock(ctx, two, 9, q.Lock); err != nil || node != 1 || h.Type != wr {
		t.Errorf("TestLock = %d, %+v, %v", node, h, err)
	}
	q.Waiter = 33
	if a, err := l.Lock(ctx, two, q); err != nil || a.Granted {
		t.Fatalf("Lock = %+v, %v, want to wait", a, err)
	}
	l.NodeClosed(1, 9)
	if w := <-woken; w != 33 {
		t.Errorf("waiter %d is woken", w)
	}
	if a, err := l.Lock(ctx, two, q); err != nil || !a.Granted {
		t.Errorf("asked again: %+v, %v", a, err)
	}
}

// TestClosedMeanwhile: a file of a lost node that is closed just after the home becomes ready keeps no lock.
func TestClosedMeanwhile(t *testing.T) {
	var l *Locks
	l = New(Config{Ready: func(_ context.Context, by metadata.Holder, ino metadata.Ino, do func()) error {
		do()
		l.NodeClosed(by.Node, ino)
		return nil
	}})
	if _, err := l.Lock(t.Context(), metadata.Holder{Node: 1, Run: 1}, metadata.LockReq{Ino: 9, Lock: lk(wr, 1, 0, all)}); err != nil {
		t.Fatal(err)
	}
	if s := l.Stats(); s.Locks != 0 {
		t.Errorf("%+v", s)
	}
}

// TestCancelledBeforeReady: a request that waits only for the home to be ready is cancelled there as well: a lock
// granted later would never be released.
func TestCancelledBeforeReady(t *testing.T) {
	ready, asks := make(chan struct{}), make(chan struct{}, 2)
	l := New(Config{Ready: func(_ context.Context, by metadata.Holder, _ metadata.Ino, do func()) error {
		if asks <- struct{}{}; by.Run == 1 {
			<-ready
		}
		do()
		return nil
	}})
	q := metadata.LockReq{Ino: 9, Lock: lk(wr, 5, 0, all)}
	late := make(chan error)
	for node := range metadata.NodeID(2) {
		go func() {
			a, err := l.Lock(t.Context(), metadata.Holder{Node: node, Run: 1}, q)
			if a.Granted == (err != nil) {
				t.Errorf("node %d: %+v, %v", node, a, err)
			}
			late <- err
		}()
		<-asks
	}
	cancel := q
	cancel.Cancel = true
	for node := range metadata.NodeID(2) { // node 1 asks for another range
		if a, err := l.Lock(t.Context(), metadata.Holder{Node: node}, cancel); a.Granted || err != nil {
			t.Errorf("cancel = %+v, %v", a, err)
		}
		<-asks
		cancel.Start++
	}
	close(ready)
	errs := []error{<-late, <-late}
	if errs[0] == nil {
		slices.Reverse(errs)
	}
	if !errors.Is(errs[0], syscall.EINTR) || errs[1] != nil {
		t.Errorf("the requests = %v, want one with EINTR", errs)
	}
	if node, h := l.Test(2, 9, q.Lock); node != 1 || h.Type != wr || l.Stats().Locks != 1 || len(l.arriving) != 0 {
		t.Errorf("held by node %d: %+v; %+v", node, h, l.Stats())
	}
}
