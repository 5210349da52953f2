package leases

import (
	"cmp"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// aheadFrom is the number of reads in an order of the directory that starts read-ahead.
	aheadFrom = 2
	// firstAhead and mostAhead bound the number of files that are read ahead at once. The number doubles.
	firstAhead = 8
	mostAhead  = 64
	// aheadGap is the number of files that a sequence of reads may skip, because several processes take turns reading.
	aheadGap = 8
	// mostOrdered limits the entries that are searched for the order of reads.
	mostOrdered = 1 << 14
)

// order tracks the order in which the files of a directory are read.
type order struct {
	last  metadata.Ino // last file read
	run   int          // number of consecutive reads in order before it
	made  bool         // the order is that of the inodes, not of the names
	ahead int          // number of files read ahead last; they follow from
	from  metadata.Ino
}

// Ahead records that ino is read from its start. It returns the leased attributes of the regular files that will
// probably be read next, if files of a listed directory were read in the order of their names, or of their inodes,
// which is the order of their creation.
func (c *Cache) Ahead(ino metadata.Ino) (files []metadata.Attr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	in := c.attrs[ino].in
	dir, ok := c.attrs[in]
	if !ok || len(dir.entries) > mostOrdered || dir.left(c, now) == 0 {
		return nil
	}
	if dir.order == nil {
		dir.order = new(order)
		c.attrs[in] = dir
	}
	for _, e := range dir.order.read(dir.entries, ino) {
		if a, ok := c.attrs[e.Ino]; ok && a.left(c, now) > 0 && a.value.Mode&syscall.S_IFMT == syscall.S_IFREG {
			files = append(files, a.value)
		}
	}
	return files
}

// read records a read of ino, one of the entries es by name, and returns the entries to read ahead.
func (o *order) read(es []metadata.Entry, ino metadata.Ino) []metadata.Entry {
	if n := distance(es, o.from, ino, o.made); n > 0 && n <= o.ahead || ino == o.last {
		return nil // its turn has not come yet, or it could not be read ahead
	}
	follows := func(made bool) bool {
		n := distance(es, o.last, ino, made)
		return n > 0 && n <= o.ahead+aheadGap
	}
	switch {
	case follows(o.made):
		o.run++
	case follows(!o.made):
		o.run, o.made = 1, !o.made
	default:
		o.run, o.ahead, o.from = 0, 0, 0
	}
	o.last = ino
	if o.run < aheadFrom {
		return nil
	}
	o.ahead, o.from = min(max(2*o.ahead, firstAhead), mostAhead), ino
	return behind(es, ino, o.made, o.ahead)
}

// distance returns how many entries ino follows last in the order of inodes (made) or names; 0 if it does not.
func distance(es []metadata.Entry, last, ino metadata.Ino, made bool) (n int) {
	if !made {
		i, j := place(es, last), place(es, ino)
		if i < 0 || j < 0 {
			return 0
		}
		return max(j-i, 0)
	}
	for _, e := range es {
		if last > 0 && e.Ino > last && e.Ino <= ino {
			n++
		}
	}
	return n
}

func place(es []metadata.Entry, ino metadata.Ino) int {
	return slices.IndexFunc(es, func(e metadata.Entry) bool { return e.Ino == ino })
}

// behind returns the first n entries after ino, in the order of inodes (made) or names.
func behind(es []metadata.Entry, ino metadata.Ino, made bool, n int) (next []metadata.Entry) {
	if !made {
		next = es[place(es, ino)+1:]
		return next[:min(n, len(next))]
	}
	for _, e := range es {
		if e.Ino <= ino || len(next) == n && e.Ino > next[n-1].Ino {
			continue
		}
		i, _ := slices.BinarySearchFunc(next, e.Ino, func(e metadata.Entry, ino metadata.Ino) int { return cmp.Compare(e.Ino, ino) })
		next = slices.Insert(next[:min(len(next), n-1)], i, e)
	}
	return next
}

// Leased is Attr with the session of the lease, zero if there is none.
func (c *Cache) Leased(ino metadata.Ino) (metadata.Attr, metadata.LeaseSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[ino]
	if !ok || a.left(c, c.now()) == 0 {
		return metadata.Attr{}, metadata.LeaseSession{}
	}
	return a.value, a.session
}
