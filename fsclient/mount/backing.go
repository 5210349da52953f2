package mount

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/handover"
	"github.com/bivouacfs/bivouac/metadata"
)

// Passthrough: where kernel (6.9 and later) and privileges allow, the kernel reads a dataset file that is whole on this
// node without the mount. The first open registers the node's object (Backer), later opens use the same id. At most
// Config.MaxBackings files are registered, the most recently opened ones. Reads, mappings and O_DIRECT then use the
// page cache of the disk, and no second one. A file that could not be registered is read through the mount until its
// last close.

// Backer registers files for FUSE passthrough, which needs a privilege that a daemon may lack.
type Backer interface {
	// Back registers f with the connection of the mount and returns its id. f may be
	// closed afterwards. The error is ENOENT or ESTALE if f no longer has its name.
	Back(f *os.File) (id int32, err error)
	// Drop unregisters an id. Open files keep it.
	Drop(id int32) error
}

// maxBackings is how many files stay registered by default. Each pins an open file in
// the kernel, about 1.5 KiB.
const maxBackings = 1 << 16

// serverBacker registers files on the mount's own connection.
type serverBacker struct{ server *fuse.Server }

func (b serverBacker) Back(f *os.File) (id int32, err error) {
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

func (b serverBacker) Drop(id int32) error {
	if no := b.server.UnregisterBackingFd(id); no != 0 {
		return no
	}
	return nil
}

// backing is a dataset file that is open, or was open lately. All opens of one inode must use passthrough, or none, so
// the first open decides.
type backing struct {
	ino  metadata.Ino
	refs int  // under backings.mu: opens
	gone bool // under backings.mu: its object was removed

	once sync.Once
	id   atomic.Int32   // set by once; 0: no passthrough
	slot *handover.Slot // set by once
}

// backings is the set of files with passthrough.
type backings struct {
	backer Backer // nil: no passthrough; set before the first open
	limit  int
	table  *handover.Table // may be nil

	mu     sync.Mutex
	byIno  map[metadata.Ino]*backing              // under mu
	idle   *simplelru.LRU[metadata.Ino, *backing] // under mu: entries of byIno without refs
	failed error                                  // under mu: why no more files are registered
}

func (t *backings) init(backer Backer, limit int) {
	t.backer, t.limit = backer, limit
	t.byIno = make(map[metadata.Ino]*backing)
	t.idle, _ = simplelru.NewLRU[metadata.Ino, *backing](math.MaxInt, nil) // ref evicts
}

// startPassthrough enables passthrough if it is possible, and returns a line for the log.
func (s *fsys) startPassthrough(server *fuse.Server, kernelHasIt bool) string {
	backer := s.cfg.Backer
	switch {
	case !kernelHasIt:
		return "no: the kernel does not support it"
	case s.cfg.MaxBackings < 0:
		return "no: disabled"
	case backer == nil && !canRegister():
		return "no: needs CAP_SYS_ADMIN"
	case backer == nil:
		backer = serverBacker{server}
	}
	s.backings.init(backer, s.cfg.MaxBackings)
	s.backings.restore(&s.takeover)
	return "yes"
}

// restore takes over the files that an earlier daemon registered, and its open files with passthrough.
func (t *backings) restore(from *takeover) {
	t.table = from.table
	open, registered := t.table.Slots()
	for _, slot := range registered {
		o := slot.Open()
		b := &backing{ino: o.Ino, slot: slot}
		b.id.Store(o.Backing)
		b.once.Do(func() {})
		t.byIno[o.Ino] = b
		t.idle.Add(o.Ino, b)
	}
	for _, slot := range open {
		switch o := slot.Open(); {
		case o.Backing != 0:
			from.drop(o.FH)
			from.s.handles.restore(o.FH, &handle{backing: t.reopen(o.Ino), slot: slot})
		case o.Ino.Sealed():
			b, _ := t.ref(o.Ino)
			b.once.Do(func() {}) // because it is open without passthrough
			from.earlier(o.FH).backing = b
		}
	}
}

// openRegistered opens a file that is already registered; it returns false if the file is not.
func (s *fsys) openRegistered(in *fuse.InHeader, out *fuse.OpenOut) bool {
	ino := metadata.Ino(in.NodeId)
	if !ino.Sealed() {
		return false
	}
	b := s.backings.reopen(ino)
	if b == nil {
		return false
	}
	out.Fh = s.takeover.add(&handle{backing: b}, in, ino, 0)
	out.OpenFlags |= fuse.FOPEN_NOFLUSH
	s.passThrough(b, out)
	return true
}

// openSealed uses passthrough for a file that is whole on this node. The kernel caches the pages of other files
// forever.
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

// canRegister reports whether this process has the privilege to register files.
func canRegister() bool {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&h, &data[0]); err != nil {
		return false
	}
	return data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// open registers f and returns its backing, or nil without passthrough. A non-nil backing needs a close.
func (t *backings) open(f *fsclient.File) *backing {
	if t.backer == nil || !f.Ino().Sealed() {
		return nil
	}
	b, evicted := t.ref(f.Ino())
	if evicted != nil {
		t.drop(evicted)
	}
	b.once.Do(func() {
		if id := t.register(f); id != 0 {
			b.slot = t.table.Register(b.ino, id)
			b.id.Store(id)
		}
	})
	return b
}

// reopen is open for a file that is already registered; it returns nil if the file is not. It makes no call.
func (t *backings) reopen(ino metadata.Ino) *backing {
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

// ref counts an open, and evicts a backing if there are too many.
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

// register returns the id of f's object, or 0 if there is none. After an error that applies to all files it registers
// no more.
func (t *backings) register(f *fsclient.File) int32 {
	if t.disabled() != nil {
		return 0
	}
	o, err := f.Backing()
	if o == nil || err != nil {
		return 0 // a read through the mount reports the error
	}
	defer o.Close()
	id, err := t.backer.Back(o)
	if err != nil {
		t.disable(fmt.Errorf("passthrough: %w", err))
		return 0
	}
	return id
}

func (t *backings) disabled() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *backings) disable(err error) {
	passing := []syscall.Errno{
		syscall.ENOMEM, syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC,
		syscall.ENOENT, syscall.ESTALE, // the object was removed or replaced meanwhile
	}
	if slices.ContainsFunc(passing, func(e syscall.Errno) bool { return errors.Is(err, e) }) {
		return // it may succeed later
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err
}

// close ends an open. The file stays registered for the next one.
func (t *backings) close(b *backing) {
	if b == nil {
		return
	}
	if t.released(b) {
		t.drop(b)
	}
}

// released counts a close, and reports whether to unregister the file.
func (t *backings) released(b *backing) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	b.refs--
	switch {
	case b.refs > 0:
	case b.gone || b.id.Load() == 0:
		delete(t.byIno, b.ino)
		return b.id.Load() != 0
	default:
		t.idle.Add(b.ino, b)
	}
	return false
}

// drop unregisters a file.
func (t *backings) drop(b *backing) {
	b.slot.Free()                  // first: a daemon that takes over must not use a dropped id
	_ = t.backer.Drop(b.id.Load()) // after an error the kernel keeps one file open
}

// forget unregisters files whose objects were removed, at once or when they are closed, so that their space is freed.
func (t *backings) forget(inos []metadata.Ino) {
	if t.backer == nil {
		return
	}
	var idle []*backing
	t.mu.Lock()
	for _, ino := range inos {
		b := t.byIno[ino]
		if b == nil {
			continue
		}
		if b.gone = true; b.refs == 0 {
			t.idle.Remove(ino)
			delete(t.byIno, ino)
			idle = append(idle, b)
		}
	}
	t.mu.Unlock()
	for _, b := range idle {
		t.drop(b)
	}
}
