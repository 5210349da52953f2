// Package cache keeps pieces that a node reads through from the source, in a bounded amount of memory.
//
// Each piece is read once for all concurrent readers (single-flight) and stays until its memory is needed; the least
// recently used piece is evicted first. A piece in use is never evicted, so a reader waits if every piece is in use. A
// piece larger than the whole cache is admitted alone. Cache.mu is the only lock and is not held while a piece is read.
//
// The package must not know what a piece is or where its bytes come from.
package cache

import (
	"container/list"
	"context"
	"sync"
)

// Cache holds pieces by key.
type Cache[K comparable] struct {
	limit int64 // bytes

	mu      sync.Mutex
	used    int64           // guarded by mu; bytes of all entries
	entries map[K]*entry[K] // guarded by mu
	idle    *list.List      // guarded by mu; entries without users, the least recently used first
	changed chan struct{}   // guarded by mu; closed when an entry became idle or was dropped
}

// entry is one piece.
type entry[K comparable] struct {
	key   K
	data  []byte
	done  chan struct{} // closed when data or err is set
	err   error
	users int           // guarded by Cache.mu
	at    *list.Element // element of idle; guarded by Cache.mu
}

// New returns a cache of at most limit bytes.
func New[K comparable](limit int64) *Cache[K] {
	return &Cache[K]{limit: limit, entries: make(map[K]*entry[K]), idle: list.New(), changed: make(chan struct{})}
}

// View calls see with the n bytes of a piece. If the cache lacks the piece, begin starts fetch once for all viewers.
// The fetch continues if the viewer that started it gives up.
func (c *Cache[K]) View(ctx context.Context, key K, n int64, begin func(fetch func()), fetch func(b []byte) error, see func(b []byte)) error {
	x, mine, err := c.acquire(ctx, key, n)
	if err != nil {
		return err
	}
	if mine {
		begin(func() {
			x.err = fetch(x.data)
			c.complete(x)
		})
	}
	defer c.release(x)
	select {
	case <-x.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if x.err == nil {
		see(x.data)
	}
	return x.err
}

// acquire returns the entry of a piece, and whether the caller must fetch it.
func (c *Cache[K]) acquire(ctx context.Context, key K, n int64) (x *entry[K], mine bool, err error) {
	for {
		c.mu.Lock()
		if x := c.entries[key]; x != nil {
			x.users++
			if x.at != nil {
				c.idle.Remove(x.at)
				x.at = nil
			}
			c.mu.Unlock()
			return x, false, nil
		}
		if x := c.insert(key, n, 2); x != nil { // users: the caller and the fetch
			c.mu.Unlock()
			return x, true, nil
		}
		changed := c.changed
		c.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, false, ctx.Err()
		}
	}
}

// insert adds an entry with the given number of users, and evicts others to make room. It returns nil if there is no
// room. The caller holds mu.
func (c *Cache[K]) insert(key K, n int64, users int) *entry[K] {
	for c.used > 0 && c.used+n > c.limit && c.idle.Len() > 0 {
		c.drop(c.idle.Front().Value.(*entry[K]))
	}
	if c.used > 0 && c.used+n > c.limit {
		return nil
	}
	x := &entry[K]{key: key, data: make([]byte, n), done: make(chan struct{}), users: users}
	c.entries[key] = x
	c.used += n
	return x
}

// Begin makes the caller the reader of a piece of n bytes: the caller fills b, then calls done; viewers wait until
// then. Begin never waits; it returns false if the piece is cached or being read, or does not fit.
func (c *Cache[K]) Begin(key K, n int64) (b []byte, done func(error), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[key] != nil {
		return nil, nil, false
	}
	x := c.insert(key, n, 1)
	if x == nil {
		return nil, nil, false
	}
	return x.data, func(err error) {
		x.err = err
		c.complete(x)
	}, true
}

// complete ends the fetch of an entry. It removes a failed entry before it wakes the viewers, so that a retry fetches
// again.
func (c *Cache[K]) complete(x *entry[K]) {
	if x.err != nil {
		c.mu.Lock()
		delete(c.entries, x.key)
		c.mu.Unlock()
	}
	close(x.done)
	c.release(x)
}

// release ends one use of an entry.
func (c *Cache[K]) release(x *entry[K]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x.users--; x.users > 0 {
		return
	}
	if c.entries[x.key] == x {
		x.at = c.idle.PushBack(x)
	} else {
		c.used -= int64(len(x.data))
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

// Forget removes a piece, so that the next viewer fetches it again.
func (c *Cache[K]) Forget(key K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch x := c.entries[key]; {
	case x == nil:
	case x.at != nil:
		c.drop(x)
	default:
		delete(c.entries, key) // its last user frees it
	}
}

// drop removes an idle entry. The caller holds mu.
func (c *Cache[K]) drop(x *entry[K]) {
	c.idle.Remove(x.at)
	delete(c.entries, x.key)
	c.used -= int64(len(x.data))
}
