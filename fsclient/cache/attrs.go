package cache

import (
	"sync/atomic"

	"github.com/bivouacfs/bivouac/metadata"
)

// Attrs caches the attributes of the dataset files that were looked up last, because a file that is looked up is often
// opened next. It is direct-mapped. The zero value is empty.
type Attrs [256]atomic.Pointer[metadata.Attr]

func (c *Attrs) slot(ino metadata.Ino) *atomic.Pointer[metadata.Attr] {
	return &c[uint64(ino)%uint64(len(c))]
}

// Put keeps a, which must not change afterwards.
func (c *Attrs) Put(a *metadata.Attr) { c.slot(a.Ino).Store(a) }

// Get returns the attributes of ino, or nil if they are not cached.
func (c *Attrs) Get(ino metadata.Ino) *metadata.Attr {
	if a := c.slot(ino).Load(); a != nil && a.Ino == ino {
		return a
	}
	return nil
}
