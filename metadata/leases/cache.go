package leases

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// maxPast limits the recalls that are remembered during fetches.
const maxPast = 4096

// maxKept limits the cached entries and the cached attributes, each.
const maxKept = 1 << 16

// maxSeen is the number of directories that are remembered, at least, with their last attributes.
const maxSeen = 8192

// The home of a directory is asked for listedMisses names that the directory does not have, or for listedAsked others,
// before the directory is listed. After listedLong other names more of it is listed.
const (
	listedMisses = 2
	listedAsked  = 8
	listedLong   = 64
)

// idle is how long an unused session is still renewed.
const idle = 5 * Term

// renewBelow is the remaining term below which a session is renewed. It is a little more than half of a term, because
// holders check for due sessions four times a term, at slightly irregular times.
const renewBelow = Term * 9 / 16

// Cache has the leased answers of one node.
type Cache struct {
	now func() time.Time

	mu       sync.Mutex
	sessions map[metadata.LeaseSession]*renewed         // guarded by mu
	listed   int                                        // guarded by mu: number of entries of all listings
	entries  map[metadata.LeaseKey]kept[metadata.Entry] // under mu; without Attr
	attrs    map[metadata.Ino]keptAttr                  // under mu
	seen     [2]map[metadata.Ino]metadata.Attr          // guarded by mu: directories, newer and older ones
	swept    time.Time                                  // guarded by mu: last removal of expired answers
	flights  int                                        // guarded by mu: fetches in progress
	seq      uint64                                     // guarded by mu: counts events
	past     map[metadata.LeaseKey]uint64               // guarded by mu: seq of each recall during fetches
	floors   map[metadata.Ino]floor                     // guarded by mu: own changes during fetches
	barren   uint64                                     // guarded by mu: fetches begun earlier cache nothing
	doubts   map[metadata.LeaseKey]time.Time            // guarded by mu: until then nothing is cached
}

// renewed is a session as its holder sees it.
type renewed struct {
	until time.Time
	used  time.Time // last use of an answer
	asked bool      // a renewal is in progress
}

type kept[T any] struct {
	value   T
	until   time.Time
	session metadata.LeaseSession
}

// keptAttr has cached attributes. For a directory it may also have the first entries, by name, valid for as long.
type keptAttr struct {
	kept[metadata.Attr]
	entries []metadata.Entry
	whole   bool   // entries is the whole directory
	misses  int    // names that the directory did not have
	asked   int    // other names that the home was asked for
	order   *order // order in which its files are read; nil if none was
	// in is a directory whose listing includes the inode.
	in metadata.Ino
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
		entries: make(map[metadata.LeaseKey]kept[metadata.Entry]), attrs: make(map[metadata.Ino]keptAttr),
		sessions: make(map[metadata.LeaseSession]*renewed),
		past:     make(map[metadata.LeaseKey]uint64), floors: make(map[metadata.Ino]floor), doubts: make(map[metadata.LeaseKey]time.Time),
	}
}

// left returns how long k is valid, and records its use; c.mu is held.
func (k *kept[T]) left(c *Cache, now time.Time) time.Duration {
	s := c.sessions[k.session]
	if s == nil || !s.until.After(now) || !k.until.After(now) {
		return 0
	}
	s.used = now
	return min(k.until.Sub(now), s.until.Sub(now))
}

// Entry returns the leased entry name of dir, without an Attr.
func (c *Cache) Entry(dir metadata.Ino, name string) (metadata.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[metadata.LeaseKey{Ino: dir, Name: name}]
	return e.value, ok && e.left(c, c.now()) > 0
}

// Attr returns the leased attributes of ino and for how long; zero if there is no lease.
func (c *Cache) Attr(ino metadata.Ino) (metadata.Attr, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[ino]
	if !ok {
		return metadata.Attr{}, 0
	}
	return a.value, a.left(c, c.now())
}

// Listing returns all entries of dir after the name after, by name and without Attr, if they are known.
func (c *Cache) Listing(dir metadata.Ino, after string) ([]metadata.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[dir]
	if !ok || !a.whole || a.left(c, c.now()) == 0 {
		return nil, false
	}
	i, found := slices.BinarySearchFunc(a.entries, after, byName)
	if found {
		i++
	}
	return a.entries[i:], true
}

// Absent reports whether dir is known to lack the entry name.
func (c *Cache) Absent(dir metadata.Ino, name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[dir]
	if !ok || !a.whole || a.left(c, c.now()) == 0 {
		return false
	}
	_, found := slices.BinarySearchFunc(a.entries, name, byName)
	return !found
}

// Asked records that the home of dir was asked for a name, and whether dir has it. It returns the number of entries of
// dir to list now, because more names may follow; mostly 0.
func (c *Cache) Asked(dir metadata.Ino, has bool) (entries int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[dir]
	if !ok || a.whole || a.left(c, c.now()) == 0 {
		return 0
	}
	if has {
		a.asked++
	} else {
		a.misses++
	}
	c.attrs[dir] = a
	switch {
	case !has && a.misses == listedMisses:
		return 256
	case has && a.asked == listedAsked:
		return 1024
	case has && a.asked == listedLong:
		return 4096
	}
	return 0
}

func byName(e metadata.Entry, name string) int { return cmp.Compare(e.Name, name) }

// Due returns the sessions to renew: the caller must pass each to Renewed.
func (c *Cache) Due() (due []metadata.LeaseSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	c.sweep(now)
	for id, s := range c.sessions {
		if !s.asked && s.until.Sub(now) < renewBelow && s.until.After(now) && now.Sub(s.used) < idle {
			s.asked = true
			due = append(due, id)
		}
	}
	return due
}

// Renewed records the term of a session whose renewal was requested at asked; a negative term is unknown.
func (c *Cache) Renewed(id metadata.LeaseSession, asked time.Time, term time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sessions[id]
	switch {
	case s == nil:
	case term == 0:
		delete(c.sessions, id)
	default:
		s.asked = false
		if until := asked.Add(term); until.After(s.until) {
			s.until = until
		}
	}
}

// unlist must be called for attributes whose listing is dropped; c.mu is held.
func (c *Cache) unlist(a keptAttr) { c.listed -= len(a.entries) }

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

// Removed returns the last attributes of the removed directory ino, without links, for processes that have it open. It
// returns false if they are unknown, or if ino is no directory.
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

// Recalled drops the answers that a home recalls, and no others: each home that changes an inode recalls its
// attributes. It returns the inodes whose attributes must no longer be cached. Invalidating more inodes is wrong: the
// kernel then discards a reply in flight, and a read uses the old size.
func (c *Cache) Recalled(keys ...metadata.LeaseKey) []metadata.Ino {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.drop(keys)
}

// Revoke drops answers that this node's change makes stale. An entry also drops the attributes of its inode. It returns
// the inodes whose attributes must no longer be cached.
func (c *Cache) Revoke(keys ...metadata.LeaseKey) []metadata.Ino {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Clip(keys)
	for _, k := range keys {
		if e, ok := c.entries[k]; ok {
			all = append(all, metadata.LeaseKey{Ino: e.value.Ino})
		}
	}
	return c.drop(all)
}

// drop drops keys, and returns the inodes among them; c.mu is held.
func (c *Cache) drop(keys []metadata.LeaseKey) (inos []metadata.Ino) {
	for _, k := range keys {
		c.forget(k)
		delete(c.entries, k)
		if k.Name == "" {
			inos = append(inos, k.Ino)
		}
	}
	return inos
}

// Doubt is Revoke for a change by this node that may still happen, because its call had no answer: the home will not
// recall keys from this node. It keeps keys from being cached for a while.
func (c *Cache) Doubt(keys ...metadata.LeaseKey) (inos []metadata.Ino) {
	inos = c.Revoke(keys...)
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.now().Add(KeyTerm)
	for _, k := range keys {
		c.doubts[k] = until
	}
	for _, ino := range inos {
		c.doubts[metadata.LeaseKey{Ino: ino}] = until
	}
	return inos
}

// forget drops k, also for fetches in progress; c.mu is held.
func (c *Cache) forget(k metadata.LeaseKey) {
	if k.Name == "" {
		c.unlist(c.attrs[k.Ino])
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

// Touch records that this node has created or removed an entry of dir, at the time t of dir's home.
func (c *Cache) Touch(dir metadata.Ino, t metadata.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.attrs[dir]; ok {
		a.value.Mtime, a.value.Ctime = max(a.value.Mtime, t), max(a.value.Ctime, t)
		c.unlist(a)
		a.entries, a.whole = nil, false
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
		if now.Sub(e.until) >= Term || c.sessions[e.session] == nil { // keep expired entries a while for Revoke
			delete(c.entries, k)
		}
	}
	for k, a := range c.attrs {
		if s := c.sessions[a.session]; s == nil || !s.until.After(now) || !a.until.After(now) {
			c.unlist(a)
			delete(c.attrs, k)
		}
	}
	maps.DeleteFunc(c.sessions, func(_ metadata.LeaseSession, s *renewed) bool { return now.Sub(s.until) >= Term })
	maps.DeleteFunc(c.doubts, func(_ metadata.LeaseKey, until time.Time) bool { return now.After(until) })
}
