package mount

import (
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/fsclient"
)

// handle is an open file or directory: one of file, content and dir is set.
type handle struct {
	file     *fsclient.File
	writable bool     // of file
	appends  bool     // of file: it was opened to append
	backing  *backing // of file, if the kernel may read it by itself
	locks    lockOwners
	content  []byte
	dir      *cursor
}

// handles numbers what is open.
type handles struct {
	mu   sync.RWMutex
	next uint64             // under mu
	open map[uint64]*handle // under mu
}

func (t *handles) init() {
	t.next = 1
	t.open = make(map[uint64]*handle)
}

func (t *handles) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	fh := t.next
	t.next++
	t.open[fh] = h
	return fh
}

func (t *handles) get(fh uint64) (*handle, error) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	h, ok := t.open[fh]
	if !ok {
		return nil, syscall.EBADF
	}
	return h, nil
}

func (t *handles) remove(fh uint64) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.open[fh]
	delete(t.open, fh)
	return h
}
