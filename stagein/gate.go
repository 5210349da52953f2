package stagein

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// gate keeps what is read ahead of readers out of their way. What is under way at
// the source when a reader comes is served before him; so while readers come, and at
// the beginning, when the first are expected, little is under way at a time: as much as
// the source answers without a queue, which is seen by how long a read takes beside
// the shortest one of about its size. Who waits to read is let in one after the other, and
// who has begun before who has not: so what is first in the order of the fill is here first.
//
// Files of a directory are read through one of their own at the beginning, when all nodes do, and not later:
// a node that alone leaves the source to the others falls behind them, and then readers wait for what it has.
type gate struct {
	mu      sync.Mutex
	readers int           // guarded by mu; that wait, or did a moment ago
	under   int64         // guarded by mu; bytes that are being read ahead
	most    int64         // guarded by mu; bytes that may be while readers come
	free    int64         // guarded by mu; bytes since most last changed that have met no queue
	held    time.Time     // guarded by mu; until when most does not grow
	line    []*waiter     // guarded by mu; in which they are let in
	quiet   chan struct{} // guarded by mu; closed while readers is 0

	least [gateSizes]time.Duration // guarded by mu; that a read has taken, by its size; 0 is that there was none
}

// waiter is one who wants to read n bytes.
type waiter struct {
	n    int64
	step int64         // guarded by mu of the gate; that he may read; 0 is that he waits
	in   chan struct{} // closed when he may
}

const (
	gateStep   = 128 << 10            // bytes of a read while readers come
	gateLeast  = 2 * gateStep         // bytes that are read ahead at a time then, at the least
	gateMost   = 16 << 20             // and at the most
	gateDelay  = 4 * time.Millisecond // a read that takes no longer has met no queue
	gateLinger = time.Second          // how long another reader is expected after one
	gateFirst  = time.Second          // and how long the first
	gateEarly  = 2 * time.Second      // how long files of a directory are read through a gate, if readers come
	gateSizes  = 18                   // of reads, up to that of a step: each is twice the one before
)

func newGate() *gate { return &gate{most: gateLeast, quiet: closedChan()} }

// reader says that one waits; what it returns, that he does no more. For some time
// afterwards another is expected.
func (g *gate) reader(linger time.Duration) (served func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.readers++; g.readers == 1 {
		g.quiet = make(chan struct{})
	}
	return func() {
		time.AfterFunc(linger, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if g.readers--; g.readers == 0 {
				close(g.quiet)
			}
			g.wake()
		})
	}
}

// wake lets in who may read; mu is held.
func (g *gate) wake() {
	for len(g.line) > 0 && g.admit(g.line[0]) {
		close(g.line[0].in)
		g.line = g.line[1:]
	}
}

// admit says how much w may read now, if anything; mu is held.
func (g *gate) admit(w *waiter) bool {
	step := w.n
	if g.readers > 0 {
		step = min(step, gateStep)
	}
	if g.readers > 0 && g.under > 0 && g.under+step > g.most {
		return false
	}
	w.step = step
	g.under += step
	return true
}

// enter waits until something may be read ahead, and says how much of n bytes: all of them, if
// somebody waits for them, which wanted is closed for. Who goes on with what he has begun is let in first.
func (g *gate) enter(ctx context.Context, wanted <-chan struct{}, n int64, goesOn bool) (int64, error) {
	w := &waiter{n: n, in: make(chan struct{})}
	g.mu.Lock()
	switch {
	case len(g.line) == 0 && g.admit(w):
		close(w.in)
	case goesOn:
		g.line = slices.Insert(g.line, 0, w)
	default:
		g.line = append(g.line, w)
	}
	g.mu.Unlock()
	var err error
	select {
	case <-w.in:
		return w.step, nil
	case <-wanted:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.Index(g.line, w); i >= 0 {
		g.line = slices.Delete(g.line, i, i+1)
		w.step = n
		g.under += n
		g.wake()
	}
	if err != nil {
		g.under -= w.step
		g.wake()
	}
	return w.step, err
}

// leave is after a read of n bytes that took so long.
func (g *gate) leave(n int64, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n <= gateStep {
		g.learn(n, took)
	}
	g.under -= n
	g.wake()
}

// learn lets more be under way after a read that met no queue, if all was that may be,
// and less after one that did.
func (g *gate) learn(n int64, took time.Duration) {
	least := &g.least[bits.Len64(uint64(n-1))]
	if *least == 0 || took < *least {
		*least = took
	}
	switch {
	case time.Now().Before(g.held):
	case took > max(2**least, gateDelay):
		g.most, g.free = max(g.most-gateStep, gateLeast), 0
	case g.under+gateStep > g.most || g.most < gateLeast:
		if g.free += n; g.free >= g.most {
			g.most, g.free = min(max(g.most+gateStep, gateLeast), gateMost), 0
		}
	}
}

// hold lets no more than a step be under way for a while: others are to have the source.
func (g *gate) hold(d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.most > gateStep {
		g.most, g.free = gateStep, 0
	}
	g.held = time.Now().Add(d)
}

// calm returns when no reader is expected, or over is closed.
func (g *gate) calm(over <-chan struct{}) {
	g.mu.Lock()
	quiet := g.quiet
	g.mu.Unlock()
	select {
	case <-quiet:
	case <-over:
	}
}

// ahead is a file of which is read what nobody has asked for yet.
type ahead struct {
	source.File
	ctx    context.Context
	g      *gate
	wanted <-chan struct{} // closed when somebody has; nil is that it is not told
}

// ReadAt implements io.ReaderAt.
func (a ahead) ReadAt(p []byte, off int64) (done int, err error) {
	for done < len(p) && err == nil {
		var step int64
		if step, err = a.g.enter(a.ctx, a.wanted, int64(len(p)-done), done > 0); err != nil {
			return done, err
		}
		var n int
		began := time.Now()
		n, err = a.File.ReadAt(p[done:done+int(step)], off+int64(done))
		a.g.leave(step, time.Since(began))
		done += n
		if int64(n) < step {
			return done, err
		}
	}
	return done, err
}
