package stagein

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// gate keeps what is read ahead of readers out of their way. What is under way at
// the source when a reader comes is served before him; so while readers come, and at
// the beginning, when the first are expected, little is under way at a time: as much as
// the source answers without a queue, which is seen by how long a read takes beside
// the shortest one.
type gate struct {
	mu      sync.Mutex
	readers int           // guarded by mu; that wait, or did a moment ago
	under   int64         // guarded by mu; bytes that are being read ahead
	most    int64         // guarded by mu; bytes that may be while readers come
	least   time.Duration // guarded by mu; that a read of a step has taken; 0 is that there was none
	free    int64         // guarded by mu; bytes since most last changed that have met no queue
	changed chan struct{} // guarded by mu; closed when under or readers falls; nil while nobody waits for that
	quiet   chan struct{} // guarded by mu; closed while readers is 0
}

const (
	gateStep   = 128 << 10            // bytes of a read while readers come
	gateLeast  = 2 * gateStep         // bytes that are read ahead at a time then, at the least
	gateMost   = 16 << 20             // and at the most
	gateDelay  = 4 * time.Millisecond // a read that takes no longer has met no queue
	gateLinger = time.Second          // how long another reader is expected after one
	gateFirst  = time.Second          // and how long the first
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

func (g *gate) wake() {
	if g.changed != nil {
		close(g.changed)
		g.changed = nil
	}
}

// enter waits until something may be read ahead, and says how much of n bytes.
func (g *gate) enter(ctx context.Context, n int64) (int64, error) {
	for {
		g.mu.Lock()
		step := n
		if g.readers > 0 {
			step = min(n, gateStep)
		}
		if g.readers == 0 || g.under == 0 || g.under+step <= g.most {
			g.under += step
			g.mu.Unlock()
			return step, nil
		}
		if g.changed == nil {
			g.changed = make(chan struct{})
		}
		changed := g.changed
		g.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// leave is after a read of n bytes that took so long.
func (g *gate) leave(n int64, took time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n == gateStep {
		g.learn(took)
	}
	g.under -= n
	g.wake()
}

// learn lets more be under way after a read that met no queue, if all was that may be,
// and less after one that did.
func (g *gate) learn(took time.Duration) {
	if g.least == 0 || took < g.least {
		g.least = took
	}
	switch {
	case took > max(2*g.least, gateDelay):
		g.most, g.free = max(g.most-gateStep, gateLeast), 0
	case g.under+gateStep > g.most:
		if g.free += gateStep; g.free >= g.most {
			g.most, g.free = min(g.most+gateStep, gateMost), 0
		}
	}
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
	ctx context.Context
	g   *gate
}

// ReadAt implements io.ReaderAt.
func (a ahead) ReadAt(p []byte, off int64) (done int, err error) {
	for done < len(p) && err == nil {
		var step int64
		if step, err = a.g.enter(a.ctx, int64(len(p)-done)); err != nil {
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
