package fill

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// limiter keeps read-ahead out of the way of demand reads. A read that is in flight at the source when a reader comes is
// served before it. So while readers come, and at the beginning, when the first are expected, only as much is in flight as
// the source answers without a queue: it is full when a read takes longer than the shortest of about its size. Waiters are
// admitted in turn, those that continue a read first, so that the front of the fill's order arrives first.
//
// Files of a directory have a limiter of their own, at the beginning only, when all nodes do the same: a node that holds
// back alone falls behind, and readers wait for its files.
type limiter struct {
	mu       sync.Mutex
	demands  int           // guarded by mu; demand reads that wait, or did a moment ago
	inFlight int64         // guarded by mu; bytes that are being read ahead
	limit    int64         // guarded by mu; bytes that may be in flight while readers come
	clean    int64         // guarded by mu; bytes since most last changed that have met no queue
	queue    []*waiter     // guarded by mu; in the order of admission
	idle     chan struct{} // guarded by mu; closed while readers is 0

	fastest [sizeClasses]time.Duration // guarded by mu; that a read has taken, by its size; 0 is that there was none
}

// waiter is a read of n bytes that is not admitted yet.
type waiter struct {
	n        int64
	step     int64         // guarded by mu of limiter; bytes that may be read; 0: not admitted
	admitted chan struct{} // closed when it is admitted
}

const (
	stepSize     = 128 << 10            // bytes of a read while readers come
	minInFlight  = 2 * stepSize         // bytes that are read ahead at a time then, at the least
	maxInFlight  = 16 << 20             // and at the most
	minDelay     = 4 * time.Millisecond // a read that takes no longer has met no queue
	DemandLinger = time.Second          // how long another reader is expected after one
	FirstDemand  = time.Second          // and how long the first
	startupTime  = 2 * time.Second      // how long files of a directory pass the startup limiter, if there are demand reads
	sizeClasses  = 18                   // of reads, up to that of a step: each is twice the one before
)

func newLimiter() *limiter { return &limiter{limit: minInFlight, idle: closedChan()} }

// demand notes a waiting reader until the returned function is called. For the time linger afterwards another one is
// expected.
func (g *limiter) demand(linger time.Duration) (served func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.demands++; g.demands == 1 {
		g.idle = make(chan struct{})
	}
	return func() {
		time.AfterFunc(linger, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.demands--; g.demands == 0 {
				close(g.idle)
			}
			g.wake()
		})
	}
}

// busy reports whether readers wait, or did a moment ago.
func (g *limiter) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.demands > 0
}

// rest returns after d, or when no reader is expected.
func (g *limiter) rest(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	g.waitIdle(ctx.Done())
}

// wake admits the waiters that may read; mu is held.
func (g *limiter) wake() {
	for len(g.queue) > 0 && g.admit(g.queue[0]) {
		close(g.queue[0].admitted)
		g.queue = g.queue[1:]
	}
}

// admit says how much w may read now, if anything; mu is held.
func (g *limiter) admit(w *waiter) bool {
	step := w.n
	if g.demands > 0 {
		step = min(step, stepSize)
	}
	if g.demands > 0 && g.inFlight > 0 && g.inFlight+step > g.limit {
		return false
	}
	w.step = step
	g.inFlight += step
	return true
}

// acquire waits until read-ahead is admitted, and returns how many of n bytes: all of them once wanted is closed, which
// says that somebody waits for them. goesOn says that the caller continues a read, and is admitted first.
func (g *limiter) acquire(ctx context.Context, wanted <-chan struct{}, n int64, goesOn bool) (int64, error) {
	w := &waiter{n: n, admitted: make(chan struct{})}
	g.mu.Lock()
	switch {
	case len(g.queue) == 0 && g.admit(w):
		close(w.admitted)
	case goesOn:
		g.queue = slices.Insert(g.queue, 0, w)
	default:
		g.queue = append(g.queue, w)
	}
	g.mu.Unlock()
	var err error
	select {
	case <-w.admitted:
		return w.step, nil
	case <-wanted:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.queue, w); i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
		w.step = n
		g.inFlight += n
		g.wake()
	}
	if err != nil {
		g.inFlight -= w.step
		g.wake()
	}
	return w.step, err
}

// release ends a read of n bytes.
func (g *limiter) release(n int64, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n <= stepSize {
		g.adapt(n, took)
	}
	g.inFlight -= n
	g.wake()
}

// adapt raises the limit after a read at the limit that met no queue, and lowers it after one that did.
func (g *limiter) adapt(n int64, took time.Duration) {
	least := &g.fastest[bits.Len64(uint64(n-1))]
	if *least == 0 || took < *least {
		*least = took
	}
	switch {
	case took > max(2**least, minDelay):
		g.limit, g.clean = max(g.limit-stepSize, minInFlight), 0
	case g.inFlight+stepSize > g.limit || g.limit < minInFlight:
		if g.clean += n; g.clean >= g.limit {
			g.limit, g.clean = min(max(g.limit+stepSize, minInFlight), maxInFlight), 0
		}
	}
}

// waitIdle returns when no reader is expected, or over is closed.
func (g *limiter) waitIdle(over <-chan struct{}) {
	g.mu.Lock()
	quiet := g.idle
	g.mu.Unlock()
	select {
	case <-quiet:
	case <-over:
	}
}

// background is a file that is read ahead, through the limiter.
type background struct {
	source.File
	ctx     context.Context
	limiter *limiter
	wanted  <-chan struct{} // closed at the first demand; nil if that is not known
}

// ReadAt implements io.ReaderAt.
func (a background) ReadAt(p []byte, off int64) (done int, err error) {
	for done < len(p) && err == nil {
		var step int64
		if step, err = a.limiter.acquire(a.ctx, a.wanted, int64(len(p)-done), done > 0); err != nil {
			return done, err
		}
		var n int
		began := time.Now()
		n, err = a.File.ReadAt(p[done:done+int(step)], off+int64(done))
		a.limiter.release(step, time.Since(began))
		done += n
		if int64(n) < step {
			return done, err
		}
	}
	return done, err
}
