package mount

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// Backer makes the kernel read files by itself (FUSE passthrough), which wants
// a privilege that a daemon may not have.
type Backer interface {
	// Back registers f with the connection of the mount and returns its id.
	// f may be closed then.
	Back(f *os.File) (id int32, err error)
	// Drop forgets an id. Files that are open go on to be read by it.
	Drop(id int32) error
}

// maxBackings is how many files stay registered by default. Each pins an open
// file in the kernel, about 1.5 KiB.
const maxBackings = 1 << 16

// ownBacker asks the kernel on the mount's own connection.
type ownBacker struct{ server *fuse.Server }

func (b ownBacker) Back(f *os.File) (id int32, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var no syscall.Errno
	err = raw.Control(func(fd uintptr) { id, no = b.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)}) })
	if err == nil && no != 0 {
		err = no
	}
	return id, err
}

func (b ownBacker) Drop(id int32) error {
	if no := b.server.UnregisterBackingFd(id); no != 0 {
		return no
	}
	return nil
}

// backing is a sealed file that is open, or was lately. What the kernel does
// with the opens of one inode must not differ while one is open, so that is
// decided by the first.
type backing struct {
	ino  metadata.Ino
	refs int // under backings.mu: opens

	once sync.Once
	id   atomic.Int32 // set by once; 0 is through the page cache of the mount
}

// backings is the files that the kernel reads by itself.
type backings struct {
	backer Backer // nil is none; set before the first open
	limit  int

	mu     sync.Mutex
	byIno  map[metadata.Ino]*backing              // under mu
	idle   *simplelru.LRU[metadata.Ino, *backing] // under mu: those of byIno without refs
	failed error                                  // under mu: why there are no more of them
}

func (t *backings) init(backer Backer, limit int) {
	t.backer, t.limit = backer, limit
	t.byIno = make(map[metadata.Ino]*backing)
	t.idle, _ = simplelru.NewLRU[metadata.Ino, *backing](math.MaxInt, nil) // ref evicts
}

// startPassthrough decides whether the kernel reads local files of datasets by
// itself, and says so for the log.
func (s *fsys) startPassthrough(server *fuse.Server, kernelHasIt bool) string {
	backer := s.cfg.Backer
	switch {
	case !kernelHasIt:
		return "no: the kernel has none"
	case s.cfg.MaxBackings < 0:
		return "no: not wanted"
	case backer == nil && !mayBack():
		return "no: needs CAP_SYS_ADMIN"
	case backer == nil:
		backer = ownBacker{server}
	}
	s.backings.init(backer, s.cfg.MaxBackings)
	return "yes"
}

// openAgain opens a sealed file that the kernel reads by itself already; false
// if it is none.
func (s *fsys) openAgain(ino metadata.Ino, out *fuse.OpenOut) bool {
	if !ino.Sealed() {
		return false
	}
	b := s.backings.again(ino)
	if b == nil {
		return false
	}
	out.Fh = s.handles.add(&handle{backing: b})
	out.OpenFlags |= fuse.FOPEN_NOFLUSH
	s.passThrough(b, out)
	return true
}

// openSealed has the kernel read a file that is whole on this node by itself,
// and otherwise keep what it has read for ever.
func (s *fsys) openSealed(h *handle, out *fuse.OpenOut) {
	h.backing = s.backings.open(h.file)
	if h.backing == nil || h.backing.id.Load() == 0 {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
		return
	}
	s.passThrough(h.backing, out)
}

func (s *fsys) passThrough(b *backing, out *fuse.OpenOut) {
	s.stats.passthrough.Add(1)
	out.OpenFlags |= fuse.FOPEN_PASSTHROUGH
	out.BackingID = b.id.Load()
}

// mayBack reports whether this process may register files with the kernel.
func mayBack() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&h, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// open returns how the kernel shall read f; nil is in the usual way. Every
// open that is not nil needs a close.
func (t *backings) open(f *fsclient.File) *backing {
	if t.backer == nil || !f.Ino().Sealed() {
		return nil
	}
	b, evicted := t.ref(f.Ino())
	if evicted != nil {
		_ = t.backer.Drop(evicted.id.Load()) // if the kernel keeps it, it keeps a file open
	}
	b.once.Do(func() { b.id.Store(t.register(f)) })
	return b
}

// again is open for a file that is registered already; nil if it is not. It
// asks nobody for anything.
func (t *backings) again(ino metadata.Ino) *backing {
	if t.backer == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.byIno[ino]
	if b == nil || b.id.Load() == 0 {
		return nil
	}
	t.idle.Remove(ino)
	b.refs++
	return b
}

// ref counts an open, and picks one to forget if there are too many.
func (t *backings) ref(ino metadata.Ino) (b, evicted *backing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b = t.byIno[ino]
	if b == nil {
		b = &backing{ino: ino}
		t.byIno[ino] = b
	}
	t.idle.Remove(ino)
	b.refs++
	if len(t.byIno) > t.limit {
		if _, v, ok := t.idle.RemoveOldest(); ok {
			evicted = v
			delete(t.byIno, v.ino)
		}
	}
	return b, evicted
}

// register returns the id of f's object; 0 if it has none that the kernel can
// read. After a refusal that holds for all files it asks no more.
func (t *backings) register(f *fsclient.File) int32 {
	if t.refusal() != nil {
		return 0
	}
	o, err := f.Backing()
	if o == nil || err != nil {
		return 0 // reading by the usual way will say what is wrong
	}
	defer o.Close()
	id, err := t.backer.Back(o)
	if err != nil {
		t.refused(fmt.Errorf("passthrough: %w", err))
		return 0
	}
	return id
}

func (t *backings) refusal() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *backings) refused(err error) {
	for _, e := range []syscall.Errno{syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC} {
		if errors.Is(err, e) {
			return // it may be had later
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err
}

// close ends an open. A file with an id stays registered for the next one.
func (t *backings) close(b *backing) {
	if b == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	b.refs--
	switch {
	case b.refs > 0:
	case b.id.Load() == 0:
		delete(t.byIno, b.ino)
	default:
		t.idle.Add(b.ino, b)
	}
}
