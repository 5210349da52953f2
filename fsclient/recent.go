package fsclient

import (
	"sync/atomic"

	"github.com/bivouacfs/bivouac/metadata"
)

// recentAttrs is the attributes of some inodes of datasets that were looked up
// last, which never change: who looks a file up often opens it next. Those of
// one slot take each other's place.
type recentAttrs [256]atomic.Pointer[metadata.Attr]

func (r *recentAttrs) slot(ino metadata.Ino) *atomic.Pointer[metadata.Attr] {
	return &r[uint64(ino)%uint64(len(r))]
}

// put keeps a, which nobody changes any more.
func (r *recentAttrs) put(a *metadata.Attr) { r.slot(a.Ino).Store(a) }

// get is nil if ino was not looked up lately.
func (r *recentAttrs) get(ino metadata.Ino) *metadata.Attr {
	if a := r.slot(ino).Load(); a != nil && a.Ino == ino {
		return a
	}
	return nil
}
