package mount

import (
	"context"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// handle is an open file or directory: one of file, content and dir is set.
type handle struct {
	file    *fsclient.File
	writer  *fsclient.Writer // of file; nil if it is only read
	syncer  *fsclient.Writer // of file: writer, or what learns of losses for who reads
	appends bool             // of file: it was opened to append
	direct  bool             // of file: the kernel keeps no pages of it, and asks no attributes before a read
	backing *backing         // of file, if the kernel may read it by itself
	locks   lockOwners
	content []byte
	dir     *cursor
}

// close closes the file, and returns what nobody was told yet.
func (h *handle) close(ctx context.Context) error {
	if h.writer != nil {
		return h.writer.Close(ctx)
	}
	return h.file.Close(ctx)
}

// handles numbers what is open.
type handles struct {
	mu        sync.RWMutex
	next      uint64               // under mu
	open      map[uint64]*handle   // under mu
	appending map[metadata.Ino]int // under mu: how many handles append
}

func (t *handles) init() {
	t.next = 1
	t.open = make(map[uint64]*handle)
	t.appending = make(map[metadata.Ino]int)
}

func (t *handles) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	fh := t.next
	t.next++
	t.open[fh] = h
	if h.appends {
		t.appending[h.file.Ino()]++
	}
	return fh
}

// appended reports whether some handle appends to ino.
func (t *handles) appended(ino metadata.Ino) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.appending[ino] > 0
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
	if h != nil && h.appends {
		ino := h.file.Ino()
		if t.appending[ino]--; t.appending[ino] == 0 {
			delete(t.appending, ino)
		}
	}
	return h
}
