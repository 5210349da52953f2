package prefetch

import (
	"context"
	"time"
)

// flight is a fetch in flight. A read that meets it waits, and does not fetch the bytes again.
type flight struct {
	began  time.Time
	met    bool // guarded by Engine.mu; a reader waits
	n      int64
	landed chan struct{} // closed when the bytes are kept, or the fetch has failed
	kept                 // written before that; without bytes if the fetch has failed
}

// wait waits until the flight has landed. It reports false once mostWait has passed since the bytes were requested.
func (f *flight) wait(ctx context.Context, now time.Time) bool {
	t := time.NewTimer(mostWait - now.Sub(f.began))
	defer t.Stop()
	select {
	case <-f.landed:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	return false
}

// depart makes readers wait for n bytes from now on.
func (e *Engine) depart(at place, n int64) *flight {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := &flight{began: e.cfg.Now(), n: n, landed: make(chan struct{})}
	e.flights[at] = f
	return f
}

// land keeps the bytes of a flight; without bytes the fetch has failed. met reports whether a reader has waited for
// them.
func (e *Engine) land(at place, f *flight, k kept) (met bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.kept = k; k.b != nil {
		e.kept[at] = &f.kept
	}
	e.remove(at, f)
	close(f.landed)
	return f.met
}

// unmet makes no reader wait for a flight from now on; it returns false if one already waits. The kernel locks the
// pages that it reads, so storing them would wait for the reader.
func (e *Engine) unmet(at place, f *flight) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.met {
		return false
	}
	e.remove(at, f)
	return true
}

// remove ends a flight. The caller holds mu.
func (e *Engine) remove(at place, f *flight) {
	if e.flights[at] == f {
		delete(e.flights, at)
	}
}
