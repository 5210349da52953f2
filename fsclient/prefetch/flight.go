package prefetch

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// flight is a file under way. A read that meets it waits, and does not fetch the file once more.
type flight struct {
	began  time.Time
	met    bool          // guarded by Engine.mu; a reader waits
	landed chan struct{} // closed when the file is kept, or does not come
	kept                 // written before that; no bytes if the file does not come
}

// wait waits until the file has landed. It reports false if that is more than mostWait after it was asked for.
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

// depart has readers wait for a file from now on.
func (e *Engine) depart(ino metadata.Ino) *flight {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := &flight{began: e.cfg.Now(), landed: make(chan struct{})}
	e.flights[ino] = f
	return f
}

// land keeps a file that was under way; without bytes it does not come. Met reports whether a reader
// has waited for it.
func (e *Engine) land(ino metadata.Ino, f *flight, k kept) (met bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.kept = k; k.b != nil {
		e.kept[ino] = k
	}
	e.remove(ino, f)
	close(f.landed)
	return f.met
}

// unmet has no reader wait for a file from now on; false if one does already. The kernel locks the
// pages that it reads, so storing them would wait for the reader.
func (e *Engine) unmet(ino metadata.Ino, f *flight) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.met {
		return false
	}
	e.remove(ino, f)
	return true
}

// remove ends a flight. The caller holds mu.
func (e *Engine) remove(ino metadata.Ino, f *flight) {
	if e.flights[ino] == f {
		delete(e.flights, ino)
	}
}
