package fill

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// limiter keeps read-ahead out of the way of demand reads. The source serves reads already in flight before a demand
// read. So while demand reads arrive, and at the start, when the first are expected, it admits only as many bytes as
// the source answers without queueing: a read met a queue if it took longer than the fastest of about its size. Waiters
// are admitted in order, but a continued read goes first, so that the front of the fill order arrives first.
//
// Files of a directory have their own limiter, only at the start, when all nodes hold back alike: a node that holds
// back alone falls behind, and readers wait for its files.
type limiter struct {
	mu       sync.Mutex
	demands  int           // guarded by mu; demand reads that wait, or waited within linger
	inFlight int64         // guarded by mu; bytes of read-ahead in flight
	limit    int64         // guarded by mu; bytes of read-ahead that may be in flight while demand reads arrive
	clean    int64         // guarded by mu; bytes read without meeting a queue since limit last changed
	queue    []*waiter     // guarded by mu; in the order of admission
	idle     chan struct{} // guarded by mu; closed while demands is 0

	fastest [sizeClasses]time.Duration // guarded by mu; fastest read so far, by size class; 0: none yet
}

// waiter is a read of n bytes that is not yet admitted.
type waiter struct {
	n        int64
	step     int64         // guarded by limiter.mu; bytes that may be read; 0: not admitted
	admitted chan struct{} // closed on admission
}

const (
	stepSize     = 128 << 10            // bytes of one read while demand reads arrive
	minInFlight  = 2 * stepSize         // lower bound of bytes in flight meanwhile
	maxInFlight  = 16 << 20             // upper bound
	minDelay     = 4 * time.Millisecond // a read that takes no longer has met no queue
	DemandLinger = time.Second          // how long after a demand read another is expected
	FirstDemand  = time.Second          // how long after the start the first is expected
	startupTime  = 2 * time.Second      // how long files of a directory pass the startup limiter, if there are demand reads
	sizeClasses  = 18                   // of reads, up to the size of a step; each class is twice the one before
)

func newLimiter() *limiter { return &limiter{limit: minInFlight, idle: closedChan()} }

// demand registers a waiting reader until the returned function is called. Another reader is expected for the time
// linger afterwards.
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

// busy reports whether demand reads wait or are expected.
func (g *limiter) busy() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.demands > 0
}

// rest returns after d, or earlier when no demand read is expected.
func (g *limiter) rest(ctx context.Context, d time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	g.waitIdle(ctx.Done())
}

// wake admits the waiters that may read. The caller holds mu.
func (g *limiter) wake() {
	for len(g.queue) > 0 && g.admit(g.queue[0]) {
		close(g.queue[0].admitted)
		g.queue = g.queue[1:]
	}
}

// admit reports whether w may read now, and sets w.step to how many bytes. The caller holds mu.
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

// acquire waits until read-ahead of up to n bytes is admitted, and returns how many bytes: all n once wanted is closed,
// because then a reader waits for them. goesOn marks the continuation of a read, which is admitted first.
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

// adapt raises the limit after reads at the limit met no queue, and lowers it after one that did.
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

// waitIdle returns when no demand read is expected, or over is closed.
func (g *limiter) waitIdle(over <-chan struct{}) {
	g.mu.Lock()
	quiet := g.idle
	g.mu.Unlock()
	select {
	case <-quiet:
	case <-over:
	}
}

// background is a file that is read ahead through the limiter.
type background struct {
	source.File
	ctx     context.Context
	limiter *limiter
	wanted  <-chan struct{} // closed at the first demand; nil if demand is not known
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
