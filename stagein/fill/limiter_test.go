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

// slowFile is a file with slow reads; it counts the bytes in flight.
type slowFile struct {
	source.File
	data        []byte
	rate        int64 // bytes a second, one read after another; 0 means unlimited
	mu          sync.Mutex
	free        time.Time // guarded by mu; when it has served all reads so far
	under, most atomic.Int64
}

func (f *slowFile) ReadAt(p []byte, off int64) (int, error) {
	now := f.under.Add(int64(len(p)))
	for most := f.most.Load(); now > most && !f.most.CompareAndSwap(most, now); most = f.most.Load() {
	}
	time.Sleep(f.takes(len(p))) // on the clock of the synctest bubble
	f.under.Add(-int64(len(p)))
	return copy(p, f.data[off:]), nil
}

// takes returns the duration of a read of n bytes that arrives now.
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

// TestLimiter: few bytes are in flight while demand reads arrive; all requested bytes are in flight after a pause; the
// data read is correct.
func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, ahead8 = 1 << 20, 8
		const few = minInFlight + stepSize // two steps take twice as long as one; the limiter needs one more to notice
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

// TestLimiterGivesUp: a cancelled read does not wait for other reads.
func TestLimiterGivesUp(t *testing.T) {
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

// TestLimiterQueue: waiting reads are admitted in turn, reads in progress go first, demand reads are admitted
// immediately, and a read that gives up blocks no other.
func TestLimiterQueue(t *testing.T) {
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
			g.clean = 0 // the limit does not adapt
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

// TestLimiterFollowsTheSource: while demand reads arrive, the limit is what the source serves without queueing; it
// drops when a queue builds up.
func TestLimiterFollowsTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size, readers = 1 << 20, 8
		f := &slowFile{data: make([]byte, size)}
		g := newLimiter()
		defer g.demand(time.Second)()
		most := func() int64 {
			var wg sync.WaitGroup
			for round := range 16 {
				f.most.Store(0) // only the last round counts
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

// TestBeginsSlowly: the fill of a directory is throttled for longer if somebody reads.
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
