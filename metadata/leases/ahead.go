package leases

import (
	"cmp"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// aheadFrom is how many files must follow each other in an order of their directory until others are read ahead.
	aheadFrom = 2
	// firstAhead and mostAhead bound how many files are read ahead at once. The number doubles.
	firstAhead = 8
	mostAhead  = 64
	// aheadGap is how many files a sequence of reads may skip, because several processes read in turn.
	aheadGap = 8
	// mostOrdered is how many entries are looked through for the order of reads.
	mostOrdered = 1 << 14
)

// order is how the files of a directory are read.
type order struct {
	last  metadata.Ino // the file that was read last
	run   int          // reads in order before it
	made  bool         // the order is that of the inodes, not of the names
	ahead int          // files that were read ahead last; they are those behind from
	from  metadata.Ino
}

// Ahead notes that ino is read from its start. It returns the leased attributes of the regular files that will probably be
// read next: if files of a listed directory were read in the order of their names, or of their inodes, which is that in
// which they were made.
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

// read notes that ino of the entries es, by name, is read. It returns the entries that are to be read ahead.
func (o *order) read(es []metadata.Entry, ino metadata.Ino) []metadata.Entry {
	if n := distance(es, o.from, ino, o.made); n > 0 && n <= o.ahead || ino == o.last {
		return nil // as its turn is still to come, or it could not be read ahead
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

// distance is how many entries ino comes after last, in the order of the inodes (made) or of the names; 0 if it does not.
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

// behind returns the first n entries after ino in an order.
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

// Leased is Attr with the session of the lease; none if there is no lease.
func (c *Cache) Leased(ino metadata.Ino) (metadata.Attr, metadata.LeaseSession) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.attrs[ino]
	if !ok || a.left(c, c.now()) == 0 {
		return metadata.Attr{}, metadata.LeaseSession{}
	}
	return a.value, a.session
}
