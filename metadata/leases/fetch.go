package leases

import (
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Fetch is a request in progress to a home.
type Fetch struct {
	c       *Cache
	began   time.Time
	seq     uint64
	session metadata.LeaseSession
}

// Fetch must be called before a request to a home, and End on its result after the reply was handled.
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

// Under returns f with the session of the leases in the reply.
func (f Fetch) Under(l metadata.Lease) Fetch {
	if l.Term <= 0 {
		return f
	}
	c, until := f.c, f.began.Add(l.Term)
	c.mu.Lock()
	defer c.mu.Unlock()
	f.session = l.Session
	s := c.sessions[f.session]
	if s == nil {
		s = &renewed{used: c.now()}
		c.sessions[f.session] = s
	}
	if until.After(s.until) {
		s.until = until
	}
	return f
}

// overtaken reports whether an answer about k must not be cached; c.mu is held.
func (f Fetch) overtaken(k metadata.LeaseKey) bool {
	return f.seq < f.c.barren || f.c.past[k] > f.seq || f.c.doubts[k].After(f.began)
}

// Entry caches an entry of dir for the term of its lease, unless the lease was recalled since the request. Without a
// term it only records the target of the entry for Revoke.
func (f Fetch) Entry(dir metadata.Ino, e metadata.Entry, term time.Duration) {
	c := f.c
	k := metadata.LeaseKey{Ino: dir, Name: e.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.overtaken(k) {
		term = 0
	}
	if _, ok := c.entries[k]; !ok && len(c.entries) >= maxKept {
		return
	}
	e.Attr = nil
	c.entries[k] = kept[metadata.Entry]{e, f.began.Add(max(term, 0)), f.session}
}

// Attr is Entry for the attributes of an inode. For a directory it returns them with this node's changes since the
// request.
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
	if term <= 0 || f.overtaken(metadata.LeaseKey{Ino: a.Ino}) {
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
	now := c.now()
	next := keptAttr{kept: kept[metadata.Attr]{a, f.began.Add(term), f.session}, in: have.in, order: have.order}
	if ok && have.left(c, now) > 0 && have.value.Ctime == a.Ctime {
		next.entries, next.whole, next.misses, next.asked = have.entries, have.whole, have.misses, have.asked
		have.entries = nil
	}
	c.unlist(have)
	c.attrs[a.Ino] = next
	return a
}

// Listing caches the entries of dir after the name after, sorted by name and without Attr, while the attributes of dir
// are leased. Both must come from one answer, with the same term. end: dir has no more entries. Entries that do not
// extend the cached listing are not cached.
func (f Fetch) Listing(dir metadata.Ino, after string, es []metadata.Entry, end bool, term time.Duration) {
	c := f.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	a, ok := c.attrs[dir]
	own := kept[struct{}]{until: f.began.Add(term), session: f.session}
	n := len(a.entries)
	switch {
	case !ok || a.left(c, now) == 0 || own.left(c, now) == 0, len(es)+c.listed > maxKept:
		return
	case f.overtaken(metadata.LeaseKey{Ino: dir}) || c.floors[dir].seq > f.seq:
		return
	case after == "":
		c.unlist(a)
		a.entries = slices.Clip(es)
	case !a.whole && n > 0 && a.entries[n-1].Name == after:
		a.entries = append(a.entries, es...)
	default:
		return
	}
	a.whole = end
	c.listed += len(es)
	c.attrs[dir] = a
	for _, e := range es {
		if a, ok := c.attrs[e.Ino]; ok {
			a.in = dir
			c.attrs[e.Ino] = a
		}
	}
}
