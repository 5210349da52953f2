package leases

import (
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// maxPast bounds the recalls that are remembered during fetches.
const maxPast = 4096

// maxKept bounds the entries and the attributes that are cached, each.
const maxKept = 1 << 16

// maxSeen is how many directories are remembered, at least, with their last attributes.
const maxSeen = 8192

// Cache is the leased answers of one node.
type Cache struct {
	now func() time.Time

	mu      sync.Mutex
	entries map[metadata.LeaseKey]kept[metadata.Entry] // under mu; without Attr
	attrs   map[metadata.Ino]kept[metadata.Attr]       // under mu
	seen    [2]map[metadata.Ino]metadata.Attr          // guarded by mu: directories, newer ones first
	swept   time.Time                                  // guarded by mu: last removal of expired answers
	flights int                                        // guarded by mu: fetches in progress
	seq     uint64                                     // guarded by mu: counts events
	past    map[metadata.LeaseKey]uint64               // guarded by mu: seq of each recall, during fetches
	floors  map[metadata.Ino]floor                     // guarded by mu: own changes, during fetches
	barren  uint64                                     // guarded by mu: earlier fetches cache nothing
}

type kept[T any] struct {
	value T
	until time.Time
}

// floor is a lower bound of the mtime of a directory.
type floor struct {
	seq  uint64
	time metadata.Time
}

// NewCache returns an empty cache.
func NewCache(now func() time.Time) *Cache {
	return &Cache{
		now: now, swept: now(),
		seen:    [2]map[metadata.Ino]metadata.Attr{make(map[metadata.Ino]metadata.Attr)},
		entries: make(map[metadata.LeaseKey]kept[metadata.Entry]), attrs: make(map[metadata.Ino]kept[metadata.Attr]),
		past: make(map[metadata.LeaseKey]uint64), floors: make(map[metadata.Ino]floor),
	}
}

// Entry returns the leased entry name of dir, without an Attr.
func (c *Cache) Entry(dir metadata.Ino, name string) (metadata.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[metadata.LeaseKey{Ino: dir, Name: name}]
	return e.value, ok && e.until.After(c.now())
}

// Attr returns the leased attributes of ino and for how long; zero if there is no lease.
func (c *Cache) Attr(ino metadata.Ino) (metadata.Attr, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[ino]
	if !ok {
		return metadata.Attr{}, 0
	}
	return a.value, max(a.until.Sub(c.now()), 0)
}

// Fetch is a request to a home in progress.
type Fetch struct {
	c     *Cache
	began time.Time
	seq   uint64
}

// Fetch must be called before a request to a home, and End of its result after the reply was
// handled.
func (c *Cache) Fetch() Fetch {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.sweep(now)
	c.flights++
	return Fetch{c: c, began: now, seq: c.seq}
}

// End ends the request.
func (f Fetch) End() {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flights--
	if c.flights == 0 {
		clear(c.past)
		clear(c.floors)
	}
}

// Entry caches an entry of dir for the term of its lease, unless that was recalled since the
// request. Without a term it only tells Revoke the target of the entry.
func (f Fetch) Entry(dir metadata.Ino, e metadata.Entry, term time.Duration) {
	c := f.c
	k := metadata.LeaseKey{Ino: dir, Name: e.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.seq < c.barren || c.past[k] > f.seq {
		term = 0
	}
	if _, ok := c.entries[k]; !ok && len(c.entries) >= maxKept {
		return
	}
	e.Attr = nil
	c.entries[k] = kept[metadata.Entry]{e, f.began.Add(max(term, 0))}
}

// Attr is Entry for the attributes of an inode. It returns those of a directory with the changes of
// this node since the request.
func (f Fetch) Attr(a metadata.Attr, term time.Duration) metadata.Attr {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	isDir := a.Mode&syscall.S_IFMT == syscall.S_IFDIR
	if isDir {
		if fl, ok := c.floors[a.Ino]; ok && fl.seq > f.seq {
			a.Mtime, a.Ctime = max(a.Mtime, fl.time), max(a.Ctime, fl.time)
		}
		c.see(a)
	}
	if term <= 0 || f.seq < c.barren || c.past[metadata.LeaseKey{Ino: a.Ino}] > f.seq {
		return a
	}
	have, ok := c.attrs[a.Ino]
	switch {
	case !ok && len(c.attrs) >= maxKept:
		return a
	case ok && isDir: // of a younger answer, or changed here
		a.Mtime, a.Ctime = max(a.Mtime, have.value.Mtime), max(a.Ctime, have.value.Ctime)
	case ok && have.value.Ctime > a.Ctime: // of a younger answer
		return a
	}
	c.attrs[a.Ino] = kept[metadata.Attr]{a, f.began.Add(term)}
	return a
}

// See records the current attributes of a directory.
func (c *Cache) See(a metadata.Attr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.see(a)
}

// see is See; c.mu is held.
func (c *Cache) see(a metadata.Attr) {
	if len(c.seen[0]) >= maxSeen {
		c.seen = [2]map[metadata.Ino]metadata.Attr{make(map[metadata.Ino]metadata.Attr), c.seen[0]}
	}
	c.seen[0][a.Ino] = a
}

// Removed returns the last attributes of the removed directory ino, without links, for processes
// that have it open. False if unknown, or no directory.
func (c *Cache) Removed(ino metadata.Ino) (metadata.Attr, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.seen {
		if a, ok := m[ino]; ok {
			a.Nlink = 0
			return a, true
		}
	}
	return metadata.Attr{}, false
}

// Revoke drops recalled answers. An entry takes the attributes of its inode with it. It returns
// the inodes whose attributes must not be cached any longer.
func (c *Cache) Revoke(keys ...metadata.LeaseKey) (inos []metadata.Ino) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		c.forget(k)
		if k.Name == "" {
			inos = append(inos, k.Ino)
			continue
		}
		if e, ok := c.entries[k]; ok {
			delete(c.entries, k)
			c.forget(metadata.LeaseKey{Ino: e.value.Ino})
			inos = append(inos, e.value.Ino)
		}
	}
	return inos
}

// forget drops k, also for fetches in progress; c.mu is held.
func (c *Cache) forget(k metadata.LeaseKey) {
	if k.Name == "" {
		delete(c.attrs, k.Ino)
	}
	if c.flights == 0 {
		return
	}
	c.seq++
	if len(c.past) >= maxPast {
		clear(c.past)
		c.barren = c.seq
	}
	c.past[k] = c.seq
}

// Touch records that this node has created or removed an entry of dir at the time t of its home.
func (c *Cache) Touch(dir metadata.Ino, t metadata.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.attrs[dir]; ok {
		a.value.Mtime, a.value.Ctime = max(a.value.Mtime, t), max(a.value.Ctime, t)
		c.attrs[dir] = a
	}
	if c.flights == 0 {
		return
	}
	c.seq++
	if len(c.floors) >= maxPast {
		clear(c.floors)
		c.barren = c.seq
	}
	c.floors[dir] = floor{c.seq, max(c.floors[dir].time, t)}
}

// sweep drops expired answers, once a term.
func (c *Cache) sweep(now time.Time) {
	if now.Sub(c.swept) < Term {
		return
	}
	c.swept = now
	for k, e := range c.entries {
		if now.Sub(e.until) >= Term { // one that is over serves Revoke for a while
			delete(c.entries, k)
		}
	}
	for k, a := range c.attrs {
		if !a.until.After(now) {
			delete(c.attrs, k)
		}
	}
}
