package stagein

import (
	"container/list"
	"context"
	"sync"
)

// window is the bytes of pieces that this node reads through: they have no room
// on any disk. A piece is read once for all who ask for it at a time, and stays
// until others need its memory, the one that was longest not asked for first.
type Cache struct {
	max int64 // bytes

	mu      sync.Mutex
	used    int64              // guarded by mu; bytes of all panes
	entries map[PieceID]*entry // guarded by mu
	idle    *list.List         // guarded by mu; panes that nobody looks at, the oldest first
	changed chan struct{}      // guarded by mu; closed when one became idle or went
}

// pane is one piece.
type entry struct {
	p     PieceID
	b     []byte
	done  chan struct{} // closed when b or err is there
	err   error
	users int           // who looks at it; guarded by window.mu
	at    *list.Element // in idle; guarded by window.mu
}

func newCache(max int64) *Cache {
	return &Cache{max: max, entries: make(map[PieceID]*entry), idle: list.New(), changed: make(chan struct{})}
}

// look calls see with the n bytes of a piece, which fetch reads if they are not
// there: once, for all who look. It goes on when the one who began it gives up.
func (w *Cache) View(ctx context.Context, p PieceID, n int64, begin func(fetch func()), fetch func(b []byte) error, see func(b []byte)) error {
	x, mine, err := w.acquire(ctx, p, n)
	if err != nil {
		return err
	}
	if mine {
		begin(func() {
			x.err = fetch(x.b)
			w.complete(x)
		})
	}
	defer w.release(x)
	select {
	case <-x.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if x.err == nil {
		see(x.b)
	}
	return x.err
}

// open is the pane of a piece, and whether the caller is to fill it.
func (w *Cache) acquire(ctx context.Context, p PieceID, n int64) (x *entry, mine bool, err error) {
	for {
		w.mu.Lock()
		if x := w.entries[p]; x != nil {
			x.users++
			if x.at != nil {
				w.idle.Remove(x.at)
				x.at = nil
			}
			w.mu.Unlock()
			return x, false, nil
		}
		for w.used > 0 && w.used+n > w.max && w.idle.Len() > 0 {
			w.drop(w.idle.Front().Value.(*entry))
		}
		if w.used == 0 || w.used+n <= w.max {
			x := &entry{p: p, b: make([]byte, n), done: make(chan struct{}), users: 2} // the caller, and who fills it
			w.entries[p] = x
			w.used += n
			w.mu.Unlock()
			return x, true, nil
		}
		changed := w.changed
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// filled is the end of the fetch of a pane. One that has failed is forgotten before
// anybody hears of it, so that who tries again does not find it.
func (w *Cache) complete(x *entry) {
	if x.err != nil {
		w.mu.Lock()
		delete(w.entries, x.p)
		w.mu.Unlock()
	}
	close(x.done)
	w.release(x)
}

// close ends a look.
func (w *Cache) release(x *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.users--; x.users > 0 {
		return
	}
	if w.entries[x.p] == x {
		x.at = w.idle.PushBack(x)
	} else {
		w.used -= int64(len(x.b))
	}
	close(w.changed)
	w.changed = make(chan struct{})
}

// forget has a piece fetched anew for whoever looks from now on.
func (w *Cache) Forget(p PieceID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch x := w.entries[p]; {
	case x == nil:
	case x.at != nil:
		w.drop(x)
	default:
		delete(w.entries, p) // who looks at it last frees it
	}
}

// drop forgets an idle pane; w.mu is held.
func (w *Cache) drop(x *entry) {
	w.idle.Remove(x.at)
	delete(w.entries, x.p)
	w.used -= int64(len(x.b))
}
