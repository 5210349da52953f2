package mount

import (
	"context"
	"sync"
	"syscall"
	"time"

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
	ends    *ends            // of file: where the kernel believes that it ends; nil in a dataset
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
	now func() time.Time // time.Now, but in tests

	mu    sync.RWMutex
	next  uint64                       // under mu
	open  map[uint64]*handle           // under mu
	files map[metadata.Ino]*openedFile // under mu: the live ones
	// lately is some files that have grown. Those of one place take each other's.
	lately [64]grownFile // under mu
}

// stillGrowing is how long a file counts as growing after its last handle to append was
// closed, or the kernel has heard of writes there: who appends line by line (echo >>) has none open in between.
const stillGrowing = time.Second

// grownFile is a file that has grown.
type grownFile struct {
	ino  metadata.Ino
	till time.Time
}

// openedFile is what the handles of a live file have together.
type openedFile struct {
	handles   int // under handles.mu
	appending int // under handles.mu: of them append
	ends      *ends
}

func (t *handles) init() {
	t.now = time.Now
	t.next = 1
	t.open = make(map[uint64]*handle)
	t.files = make(map[metadata.Ino]*openedFile)
}

func (t *handles) add(h *handle) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	fh := t.next
	t.next++
	t.open[fh] = h
	if h.file != nil && !h.file.Ino().Sealed() {
		t.join(h)
	}
	return fh
}

// join counts h among those of its file; t.mu is held.
func (t *handles) join(h *handle) {
	f := t.files[h.file.Ino()]
	if f == nil {
		f = &openedFile{ends: newEnds()}
		t.files[h.file.Ino()] = f
	}
	f.handles++
	if h.appends {
		f.appending++
	}
	h.ends = f.ends
}

// leave ends what join began; t.mu is held.
func (t *handles) leave(h *handle) {
	f := t.files[h.file.Ino()]
	if f.handles--; f.handles == 0 {
		delete(t.files, h.file.Ino())
	}
	if h.appends {
		f.appending--
		t.grewLate(h.file.Ino())
	}
}

// late is the place of ino among those that have grown lately; t.mu is held.
func (t *handles) late(ino metadata.Ino) *grownFile {
	return &t.lately[uint64(ino)%uint64(len(t.lately))]
}

// grewLate notes that ino has grown; t.mu is held.
func (t *handles) grewLate(ino metadata.Ino) {
	*t.late(ino) = grownFile{ino, t.now().Add(stillGrowing)}
}

// grew notes that ino has grown by what others write.
func (t *handles) grew(ino metadata.Ino) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.grewLate(ino)
}

// endsOf is where the kernel believes that ino ends; nil if it is not open here.
func (t *handles) endsOf(ino metadata.Ino) *ends {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if f := t.files[ino]; f != nil {
		return f.ends
	}
	return nil
}

// growing reports whether some handle appends to ino, or did a moment ago, or the kernel
// has heard then that others have made it longer.
func (t *handles) growing(ino metadata.Ino) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if f := t.files[ino]; f != nil && f.appending > 0 {
		return true
	}
	l := t.late(ino)
	return l.ino == ino && t.now().Before(l.till)
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
	if h != nil && h.ends != nil {
		t.leave(h)
	}
	return h
}
