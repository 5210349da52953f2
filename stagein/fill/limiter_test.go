package fill

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// slowFile is a file whose reads take a while; it knows how many bytes are under way.
type slowFile struct {
	source.File
	data        []byte
	rate        int64 // bytes a second that it gives, to one after the other; 0 is any number
	mu          sync.Mutex
	free        time.Time // guarded by mu; when it has given all that was asked for
	under, most atomic.Int64
}

func (f *slowFile) ReadAt(p []byte, off int64) (int, error) {
	now := f.under.Add(int64(len(p)))
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
	time.Sleep(f.takes(len(p))) // of a bubble's clock
	f.under.Add(-int64(len(p)))
	return copy(p, f.data[off:]), nil
}

// takes is how long a read of n bytes takes that comes now.
func (f *slowFile) takes(n int) time.Duration {
	if f.rate == 0 {
		return 10 * time.Millisecond
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.free.Before(now) {
		f.free = now
	}
	f.free = f.free.Add(time.Duration(n) * time.Second / time.Duration(f.rate))
	return time.Until(f.free)
}

// TestGate: while readers come little is under way; when none has come for a while,
// all that is wanted; and what is read is right.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, ahead8 = 1 << 20, 8
		const few = minInFlight + stepSize // two that take twice as long as one, and one too many to see that
		f := &slowFile{data: stageintest.RandBytes(stageintest.Rand(t), ahead8*size), rate: 100 * stepSize}
		g := newLimiter()
		most := func() int64 {
			f.most.Store(0)
			var wg sync.WaitGroup
			for i := range ahead8 {
				wg.Go(func() {
					b := make([]byte, size)
					if n, err := (background{File: f, ctx: t.Context(), limiter: g}).ReadAt(b, int64(i*size)); n != size || err != nil || !bytes.Equal(b, f.data[i*size:(i+1)*size]) {
						t.Errorf("read %d = %d bytes, %v", i, n, err)
					}
				})
			}
			wg.Wait()
			return f.most.Load()
		}
		if got := most(); got != ahead8*size {
			t.Errorf("without readers %d bytes are under way, want %d", got, ahead8*size)
		}
		served := g.demand(time.Second)
		if got := most(); got > few {
			t.Errorf("while a reader waits %d bytes are under way, want %d", got, few)
		}
		served()
		if got := most(); got > few {
			t.Errorf("after a reader %d bytes are under way, want %d", got, few)
		}
		g.waitIdle(t.Context().Done())
		if got := most(); got != ahead8*size {
			t.Errorf("when readers are gone %d bytes are under way, want %d", got, ahead8*size)
		}
	})
}

// TestGateGivesUp: who may not read any more does not wait for readers.
func TestGateGivesUp(t *testing.T) {
	g := newLimiter()
	g.demand(time.Hour)
	g.inFlight = minInFlight
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	g.waitIdle(ctx.Done())
	if _, err := (background{File: &slowFile{}, ctx: ctx, limiter: g}).ReadAt(make([]byte, 1), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("ReadAt = %v, want it cancelled", err)
	}
}

// TestGateLine: who waits is let in one after the other, who goes on before them, who is waited for at once, and who
// gives up is in nobody's way.
func TestGateLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newLimiter()
		defer g.demand(0)()
		enter := func(ctx context.Context, wanted chan struct{}, n int64, goesOn bool) int64 {
			step, err := g.acquire(ctx, wanted, n, goesOn)
			if err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			return step
		}
		under := enter(t.Context(), nil, minInFlight, false) + enter(t.Context(), nil, stepSize, true)
		var mu sync.Mutex
		var in []string
		wait := func(name string, ctx context.Context, wanted chan struct{}, goesOn bool) {
			go func() {
				n := enter(ctx, wanted, stepSize, goesOn)
				mu.Lock()
				defer mu.Unlock()
				in = append(in, fmt.Sprint(name, n/stepSize))
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		wanted := make(chan struct{})
		wait("gone", ctx, nil, false)
		wait("a", t.Context(), nil, false)
		wait("wanted", t.Context(), wanted, false)
		wait("b", t.Context(), nil, false)
		wait("on", t.Context(), nil, true)
		cancel()
		synctest.Wait()
		close(wanted)
		synctest.Wait()
		if n := len(g.queue); n != 3 || g.inFlight != under+stepSize {
			t.Errorf("%d wait while %d bytes are read, want 3 and %d", n, g.inFlight, under+stepSize)
		}
		for g.inFlight > 0 {
			g.mu.Lock()
			g.clean = 0 // it does not learn
			g.mu.Unlock()
			g.release(stepSize, 0)
			synctest.Wait()
		}
		mu.Lock()
		defer mu.Unlock()
		if want := []string{"gone1", "wanted1", "on1", "a1", "b1"}; !slices.Equal(in, want) {
			t.Errorf("let in were %q, want %q", in, want)
		}
	})
}

// TestGateFollowsTheSource: while readers come, as much is under way as the source takes
// without a queue, and no more when it gets one.
func TestGateFollowsTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, readers = 1 << 20, 8
		f := &slowFile{data: make([]byte, size)}
		g := newLimiter()
		defer g.demand(time.Second)()
		most := func() int64 {
			var wg sync.WaitGroup
			for round := range 16 {
				f.most.Store(0) // the last round counts
				for range readers {
					wg.Go(func() {
						if n, err := (background{File: f, ctx: t.Context(), limiter: g}).ReadAt(make([]byte, size), 0); n != size || err != nil {
							t.Errorf("round %d: read %d bytes, %v", round, n, err)
						}
					})
				}
				wg.Wait()
			}
			return f.most.Load()
		}
		if got := most(); got != readers*stepSize {
			t.Errorf("from a source without a queue %d bytes are under way, want a step for each of %d", got, readers)
		}
		f.rate = 10 * stepSize
		if got := most(); got > 4*stepSize {
			t.Errorf("from a source that gives a step in 100 ms %d bytes are under way, want few steps of %d", got, stepSize)
		}
	})
}

// TestBeginsSlowly: files of a directory pass the gate for longer when somebody reads.
func TestBeginsSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, read := range []bool{false, true} {
			f := &Fill{startup: newLimiter()}
			f.startThrottled()
			f.read.Store(read)
			for _, at := range []struct {
				after time.Duration
				slow  bool
			}{{FirstDemand - 1, true}, {2, read}, {startupTime - FirstDemand - 2, read}, {2, false}} {
				time.Sleep(at.after)
				synctest.Wait()
				f.startup.mu.Lock()
				slow := f.startup.demands > 0
				f.startup.mu.Unlock()
				if slow != at.slow {
					t.Errorf("read %v: slow is %v after another %v", read, slow, at.after)
				}
			}
		}
	})
}
