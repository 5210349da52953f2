package leases

import (
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// OwnChange is a request of this node in progress that changes the attributes of an inode.
type OwnChange struct {
	Fetch
	ino metadata.Ino
	had kept[metadata.Attr] // attributes leased before the request
}

// Change is Fetch for a request that changes the attributes of ino, in one operation of the caller.
func (c *Cache) Change(ino metadata.Ino) OwnChange {
	o := OwnChange{Fetch: c.Fetch(), ino: ino}
	c.mu.Lock()
	defer c.mu.Unlock()
	o.had = c.attrs[ino].kept
	return o
}

// Changed takes the attributes in the answer. If this node has held one lease on them from before the request until
// now, it keeps the lease: the home recalls it when another node changes them. Otherwise Changed drops them, as Revoke
// does, and returns false. It always drops those of a directory, whose listing and own changes follow Touch.
func (o OwnChange) Changed(a metadata.Attr) (leased bool) {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	k := metadata.LeaseKey{Ino: o.ino}
	was, ok := c.attrs[o.ino]
	leased = ok && was.until.Equal(o.had.until) && was.session == o.had.session && !o.overtaken(k) &&
		a.Mode&syscall.S_IFMT == syscall.S_IFREG && was.left(c, c.now()) > 0
	c.forget(k) // answers to earlier requests are older
	if leased {
		c.attrs[o.ino] = keptAttr{kept: kept[metadata.Attr]{a, was.until, was.session}, in: was.in, order: was.order}
	}
	return leased
}
