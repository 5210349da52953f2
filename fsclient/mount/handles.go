package mount

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/handover"
	"github.com/bivouacfs/bivouac/fsclient/pagecache"
	"github.com/bivouacfs/bivouac/metadata"
)

// handle is an open file or directory: at most one of file, content and dir is set.
type handle struct {
	file       *fsclient.File
	writer     *fsclient.Writer                  // of file; nil if it is only read
	syncer     *fsclient.Writer                  // of file: writer, or one for fsync of a reader
	appends    bool                              // of file: opened with O_APPEND
	direct     bool                              // of file: no pages in the kernel, no attribute check before reads
	kernelSize *kernelSize                       // of file: nil in a dataset
	backing    *backing                          // of file, if it has passthrough
	drops      atomic.Pointer[pagecache.Version] // of file: pages dropped by its open, not confirmed yet
	locks      lockOwners
	content    []byte
	dir        *cursor
	slot       *handover.Slot // for the next daemon
	broken     error          // of a file that an earlier daemon had open: why it could not be opened again

	settling sync.Mutex // held by settle
}

// close closes the file, and returns errors that were not reported yet.
func (h *handle) close(ctx context.Context) error {
	if h.writer != nil {
		return h.writer.Close(ctx)
	}
	return h.file.Close(ctx)
}

// handles is the set of open files and directories.
type handles struct {
	now func() time.Time // time.Now, except in tests

	mu    sync.RWMutex
	next  uint64                       // under mu
	open  map[uint64]*handle           // under mu
	files map[metadata.Ino]*openedFile // under mu: live files
	grown [64]grownFile                // under mu: files that have grown lately, direct-mapped
}

// stillGrowing is how long a file counts as growing after its last appending handle was closed, or after the kernel
// learned of writes by other nodes: a script that appends line by line (echo >>) has no handle in between.
const stillGrowing = time.Second

// grownFile is a file that counts as growing.
type grownFile struct {
	ino   metadata.Ino
	till  time.Time
	there bool // it grew by writes of other nodes
}

// openedFile is shared by the handles of a live file.
type openedFile struct {
	handles    int // under handles.mu
	appending  int // under handles.mu: handles with O_APPEND
	cached     int // under handles.mu: handles whose pages the kernel caches
	writing    int // under handles.mu: handles that can write
	file       *fsclient.File
	kernelSize *kernelSize
}

func (t *handles) init(first uint64) {
	t.next = first
	t.now = time.Now
	t.open = make(map[uint64]*handle)
	t.files = make(map[metadata.Ino]*openedFile)
}

func (t *handles) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	fh := t.next
	t.next++
	t.put(fh, h)
	return fh
}

// restore adds a handle that an earlier daemon made.
func (t *handles) restore(fh uint64, h *handle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.put(fh, h)
}

// openedDir returns the handle fh of a directory. It sets the cursor c if the handle has none yet.
func (t *handles) openedDir(fh uint64, c *cursor) *handle {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h := t.open[fh]; h != nil {
		return h
	}
	h := &handle{dir: c}
	t.open[fh] = h
	return h
}

// put adds h; t.mu is held.
func (t *handles) put(fh uint64, h *handle) {
	t.open[fh] = h
	if h.file != nil && !h.file.Ino().Sealed() {
		t.join(h)
	}
}

// join adds h to the handles of its file; t.mu is held.
func (t *handles) join(h *handle) {
	f := t.files[h.file.Ino()]
	if f == nil {
		f = &openedFile{kernelSize: newKernelSize(), file: h.file}
		t.files[h.file.Ino()] = f
	}
	f.handles++
	if h.appends {
		f.appending++
	}
	if !h.direct {
		f.cached++
	}
	if h.writer != nil {
		f.writing++
	}
	h.kernelSize = f.kernelSize
}

// leave removes h from the handles of its file; t.mu is held.
func (t *handles) leave(h *handle) {
	f := t.files[h.file.Ino()]
	if f.handles--; f.handles == 0 {
		delete(t.files, h.file.Ino())
	}
	if h.writer != nil {
		f.writing--
	}
	if h.appends {
		f.appending--
		t.noteGrown(h.file.Ino(), false)
	}
	if !h.direct {
		f.cached--
	}
}

// grownSlot returns the slot of ino; t.mu is held.
func (t *handles) grownSlot(ino metadata.Ino) *grownFile {
	return &t.grown[uint64(ino)%uint64(len(t.grown))]
}

// noteGrown records that ino has grown, with there by writes of other nodes; t.mu is held.
func (t *handles) noteGrown(ino metadata.Ino, there bool) {
	l := t.grownSlot(ino)
	there = there || l.ino == ino && l.there && t.now().Before(l.till)
	*l = grownFile{ino, t.now().Add(stillGrowing), there}
}

// grew records that ino has grown by writes of other nodes.
func (t *handles) grew(ino metadata.Ino) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteGrown(ino, true)
}

// kernelSizeOf returns the size of ino as the kernel knows it, or nil if ino is not open here.
func (t *handles) kernelSizeOf(ino metadata.Ino) *kernelSize {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if f := t.files[ino]; f != nil {
		return f.kernelSize
	}
	return nil
}

// steady reports whether the file with the attributes a is not open here, or is open only for reading and unchanged
// since.
func (t *handles) steady(a *metadata.Attr) bool {
	t.mu.RLock()
	f := t.files[a.Ino]
	writing := f != nil && f.writing > 0
	t.mu.RUnlock()
	return f == nil || !writing && !f.file.Changed(*a)
}

// growing reports whether ino has or lately had an appending handle, or has lately grown by writes of other nodes.
// While no other node has the file open (alone), appends do not count.
func (t *handles) growing(ino metadata.Ino, alone bool) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if f := t.files[ino]; f != nil && f.appending > 0 && !alone {
		return true
	}
	l := t.grownSlot(ino)
	return l.ino == ino && t.now().Before(l.till) && (l.there || !alone)
}

// cached reports whether the kernel may cache pages of ino.
func (t *handles) cached(ino metadata.Ino) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	f := t.files[ino]
	return f != nil && f.cached > 0
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
	if h != nil && h.kernelSize != nil {
		t.leave(h)
	}
	return h
}
