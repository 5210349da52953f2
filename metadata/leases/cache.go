package leases

import (
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// maxPast bounds what is remembered of revocations while answers are under way.
const maxPast = 4096

// maxSeen is how many directories are remembered, at least, as they were last.
const maxSeen = 8192

// Cache is what one node may keep, and until when.
type Cache struct {
	now func() time.Time

	mu      sync.Mutex
	entries map[metadata.LeaseKey]kept[metadata.Entry] // under mu; without Attr
	attrs   map[metadata.Ino]kept[metadata.Attr]       // under mu
	seen    [2]map[metadata.Ino]metadata.Attr          // under mu: directories, the newer ones first
	swept   time.Time                                  // under mu: when what is over was dropped
	flights int                                        // under mu: fetches under way
	seq     uint64                                     // under mu: counts what has happened
	past    map[metadata.LeaseKey]uint64               // under mu: when each was revoked last, while fetches are under way
	floors  map[metadata.Ino]floor                     // under mu: own changes, while fetches are under way
	barren  uint64                                     // under mu: fetches that began before keep nothing
}

type kept[T any] struct {
	value T
	until time.Time
}

// floor is the least time of modification a directory can have.
type floor struct {
	seq  uint64
	time metadata.Time
}

// NewCache makes an empty cache.
func NewCache(now func() time.Time) *Cache {
	return &Cache{
		now: now, swept: now(),
		seen:    [2]map[metadata.Ino]metadata.Attr{make(map[metadata.Ino]metadata.Attr)},
		entries: make(map[metadata.LeaseKey]kept[metadata.Entry]), attrs: make(map[metadata.Ino]kept[metadata.Attr]),
		past: make(map[metadata.LeaseKey]uint64), floors: make(map[metadata.Ino]floor),
	}
}

// Entry is the entry name of dir, if it is a directory's and may be kept. It has
// no Attr.
func (c *Cache) Entry(dir metadata.Ino, name string) (metadata.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[metadata.LeaseKey{Ino: dir, Name: name}]
	return e.value, ok && e.until.After(c.now())
}

// Attr is the attributes of the directory ino and how long they may be kept
// still; zero if they may not.
func (c *Cache) Attr(ino metadata.Ino) (metadata.Attr, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[ino]
	if !ok {
		return metadata.Attr{}, 0
	}
	return a.value, max(a.until.Sub(c.now()), 0)
}

// Fetch is a question that is under way to a home.
type Fetch struct {
	c     *Cache
	began time.Time
	seq   uint64
}

// Fetch must be called before a home is asked, and End of what it returns when
// the answer was dealt with.
func (c *Cache) Fetch() Fetch {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.sweep(now)
	c.flights++
	return Fetch{c: c, began: now, seq: c.seq}
}

// End forgets the question.
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

// Entry keeps an entry of dir for the term that its home has granted, unless it
// was revoked since the question. Without a term it only serves Revoke, which
// wants to know where an entry led to.
func (f Fetch) Entry(dir metadata.Ino, e metadata.Entry, term time.Duration) {
	c := f.c
	k := metadata.LeaseKey{Ino: dir, Name: e.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.seq < c.barren || c.past[k] > f.seq {
		term = 0
	}
	e.Attr = nil
	c.entries[k] = kept[metadata.Entry]{e, f.began.Add(max(term, 0))}
}

// Attr is Entry for the attributes of a directory. It returns them as they are
// known now, after what this node itself has changed since the question.
func (f Fetch) Attr(a metadata.Attr, term time.Duration) metadata.Attr {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if fl, ok := c.floors[a.Ino]; ok && fl.seq > f.seq {
		a.Mtime, a.Ctime = max(a.Mtime, fl.time), max(a.Ctime, fl.time)
	}
	c.see(a)
	if term <= 0 || f.seq < c.barren || c.past[metadata.LeaseKey{Ino: a.Ino}] > f.seq {
		return a
	}
	if have, ok := c.attrs[a.Ino]; ok { // of a younger answer, or changed here
		a.Mtime, a.Ctime = max(a.Mtime, have.value.Mtime), max(a.Ctime, have.value.Ctime)
	}
	c.attrs[a.Ino] = kept[metadata.Attr]{a, f.began.Add(term)}
	return a
}

// See notes that a directory is so now.
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

// Removed is the attributes of the directory ino, whose home says that there is
// none, for who has it open still: as they were last, without a link. False if
// it is not remembered, or was no directory.
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

// Revoke forgets what keys name, because it has changed. With an entry go the
// attributes of the directory that it led to last. It returns the directories
// whose attributes must not be kept any longer.
func (c *Cache) Revoke(keys ...metadata.LeaseKey) (dirs []metadata.Ino) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		c.forget(k)
		if k.Name == "" {
			dirs = append(dirs, k.Ino)
			continue
		}
		if e, ok := c.entries[k]; ok {
			delete(c.entries, k)
			c.forget(metadata.LeaseKey{Ino: e.value.Ino})
			dirs = append(dirs, e.value.Ino)
		}
	}
	return dirs
}

// forget drops what k names, and remembers that for the answers under way; c.mu
// is held.
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

// Touch notes that this node has made or removed an entry of dir at the time t
// of its home.
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

// sweep drops, once a term, what is over.
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

// Len is how many answers are kept.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.entries) + len(c.attrs)
}
