package fsclient

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// fileTable is the live files that are open on this node.
type fileTable struct {
	mu   sync.Mutex
	open map[metadata.Ino]*File // under mu
}

func (t *fileTable) acquire(c *Client, ino metadata.Ino) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.open[ino]
	if f == nil {
		f = newFile(c, ino)
		t.open[ino] = f
	}
	f.refs++
	return f
}

func (t *fileTable) get(ino metadata.Ino) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[ino]
}

// orphan marks the file a, which has no name left, to be removed when it is
// closed; false if it is not open.
func (t *fileTable) orphan(a metadata.Attr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.open[a.Ino]
	if f == nil {
		return false
	}
	f.orphan = true
	return true
}

func (t *fileTable) release(f *File) (last, orphan bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.refs--
	if f.refs > 0 {
		return false, false
	}
	delete(t.open, f.ino)
	return true, f.orphan
}

func (t *fileTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}
