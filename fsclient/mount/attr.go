package mount

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

const (
	// forever is how long the kernel may cache immutable names and attributes.
	forever = 365 * 24 * time.Hour
	// dirFresh is how long the kernel may cache the attributes of a live directory
	// without a lease: long enough for the permission check after a lookup. The
	// kernel rounds it up to its clock tick.
	dirFresh = time.Millisecond
	// tickSlack is how much the kernel may round up a time.
	tickSlack = 25 * time.Millisecond
	// datasetFresh is how long the kernel may cache the name of a dataset, because a dataset can fail after it was
	// seen.
	datasetFresh = time.Second
	// lostFresh is how long the kernel may cache the attributes of a lost directory.
	lostFresh = time.Second
	// blockSize is the I/O size that programs are advised to use.
	blockSize = 64 << 10
)

// freshness returns how long the kernel may cache a name and the attributes a, which are leased for the time left.
// Names that can change are never cached: invalidating one takes the kernel's lock of its directory, whose holder may
// be waiting for that change.
func freshness(a *metadata.Attr, left time.Duration) (entry, attr time.Duration) {
	switch {
	case a.Ino == inoData:
		return forever, datasetFresh
	case a.Ino == metadata.RootIno:
		return forever, max(dirFresh, left-tickSlack)
	case virtual(a.Ino):
		return forever, forever
	case a.Ino.Sealed() && a.Ino.Part() == metadata.DirPart && a.Ino.Seq() == 0:
		return datasetFresh, forever
	case a.Ino.Sealed():
		return forever, forever
	case a.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		return 0, max(dirFresh, left-tickSlack)
	}
	return 0, max(0, left-tickSlack)
}

// lease returns how long the kernel may rely on the attributes a, which are leased for the time left. It is 0 for a
// file that is open here and may change through a mapping, or that has changed since it was opened: the kernel must ask
// before each read of a changed file (see markChanged).
func (s *fsys) lease(a *metadata.Attr, left time.Duration) time.Duration {
	if left > 0 && a.Mode&syscall.S_IFMT == syscall.S_IFREG && !s.handles.steady(a) {
		return 0
	}
	return left
}

// lookupLease is lease for the answer to a lookup. The kernel may not have the inode yet, so a recall does not reach an
// answer in flight: such a lease is cut to the time that a stat takes.
func (s *fsys) lookupLease(a *metadata.Attr, left time.Duration) time.Duration {
	left = s.lease(a, left)
	return min(left, dirFresh+tickSlack)
}

func fillAttr(out *fuse.Attr, a *metadata.Attr) {
	out.Ino = uint64(a.Ino)
	out.Size = uint64(a.Size)
	out.Blocks = (out.Size + 511) / 512
	out.Atime, out.Atimensec = split(a.Atime)
	out.Mtime, out.Mtimensec = split(a.Mtime)
	out.Ctime, out.Ctimensec = split(a.Ctime)
	out.Mode = a.Mode
	out.Nlink = a.Nlink
	out.Uid = a.UID
	out.Gid = a.GID
	out.Rdev = a.Rdev
	out.Blksize = blockSize
}

// split converts t to seconds and nanoseconds; before 1970 only the seconds are negative.
func split(t metadata.Time) (sec uint64, nsec uint32) {
	s, n := int64(t)/1e9, int64(t)%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	return uint64(s), uint32(n)
}

// joined is the inverse of split. Times out of range are clamped.
func joined(sec uint64, nsec uint32) metadata.Time {
	const most = int64(1<<63-1) / 1e9
	s := min(max(int64(sec), -most), most-1)
	return metadata.Time(s*1e9 + int64(nsec))
}

func fillEntry(out *fuse.EntryOut, a *metadata.Attr) { fillLeased(out, a, 0) }

// fillLeased is fillEntry for attributes that are leased for the time left.
func fillLeased(out *fuse.EntryOut, a *metadata.Attr, left time.Duration) {
	out.NodeId = uint64(a.Ino)
	entry, attr := freshness(a, left)
	out.SetEntryTimeout(entry)
	out.SetAttrTimeout(attr)
	fillAttr(&out.Attr, a)
}

func fillAttrOut(out *fuse.AttrOut, a *metadata.Attr, left time.Duration) {
	_, attr := freshness(a, left)
	out.SetTimeout(attr)
	fillAttr(&out.Attr, a)
}

// Lookup finds a name.
func (s *fsys) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return s.call(opLookup, cancel, h, func(ctx context.Context) error {
		note(ctx, name)
		dir := metadata.Ino(h.NodeId)
		if len(name) > metadata.MaxName {
			return syscall.ENAMETOOLONG
		}
		if virtual(dir) {
			return s.lookupVirtual(ctx, h, name, out)
		}
		e, left, err := s.client.LookupLeased(ctx, dir, name)
		if err != nil && dir.Sealed() && errnoOf(err) == syscall.ENOENT {
			out.SetEntryTimeout(forever) // without a node id: a negative entry
			return nil
		}
		if errors.Is(err, syscall.EHOSTDOWN) {
			if lost, ok := s.client.LostEntry(ctx, dir, name); ok {
				s.fillLost(out, &lost)
				return nil
			}
		}
		if err != nil {
			return err
		}
		s.announce(e.Attr)
		fillLeased(out, e.Attr, s.lookupLease(e.Attr, left))
		s.fillBlocks(ctx, &out.Attr, e.Attr)
		return nil
	})
}

// fillLost answers for a name whose inode was lost with its home: the kernel needs an entry to remove the name. Any use
// of a file, even stat, returns EIO. A directory has attributes, because programs that cannot stat it would not try
// rmdir.
func (s *fsys) fillLost(out *fuse.EntryOut, e *metadata.Entry) {
	s.warn(s.log.WithField("inode", e.Ino.String()), "a file in scratch was lost with its node: only its name can be removed")
	a := metadata.Attr{Ino: e.Ino, Mode: e.Mode&syscall.S_IFMT | 0o600, Nlink: 1, UID: s.cfg.UID, GID: s.cfg.GID}
	if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		a.Mode, a.Nlink = syscall.S_IFDIR|0o700, 2
		out.SetAttrTimeout(lostFresh)
	}
	out.NodeId = uint64(e.Ino)
	fillAttr(&out.Attr, &a)
}

func (s *fsys) lookupVirtual(ctx context.Context, h *fuse.InHeader, name string, out *fuse.EntryOut) error {
	dir := metadata.Ino(h.NodeId)
	if dir == inoData {
		return s.gate.lookup(ctx, s, h, name, out)
	}
	es, err := s.virtualEntries(dir)
	if err != nil {
		return err
	}
	for _, e := range es {
		if e.Name != name {
			continue
		}
		a, left, err := s.attr(ctx, e.Ino)
		if err != nil {
			return err
		}
		fillLeased(out, &a, left)
		return nil
	}
	return syscall.ENOENT
}

// attr returns the attributes of any inode, and how long they are leased.
func (s *fsys) attr(ctx context.Context, ino metadata.Ino) (metadata.Attr, time.Duration, error) {
	if virtual(ino) {
		return s.virtualAttr(ino), 0, nil
	}
	return s.client.GetattrLeased(ctx, ino)
}

// forget makes the kernel drop cached attributes.
func (s *fsys) forget(inos []metadata.Ino) {
	server := s.server.Load()
	if server == nil {
		return // nothing is cached yet
	}
	for _, ino := range inos {
		// A negative offset leaves pages alone. An unknown inode is no error.
		_ = server.InodeNotify(uint64(ino), -1, 0)
	}
}

// givenDirs records the directories whose leased attributes the kernel was given lately. Such an answer may reach the
// kernel after the answer to a later change by this node.
type givenDirs struct {
	mu   sync.Mutex
	dirs [2]map[metadata.Ino]struct{} // under mu: newer ones first
	at   time.Time                    // under mu: when dirs[0] was started
}

// add records a directory, before its attributes are read.
func (g *givenDirs) add(dir metadata.Ino, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now.Sub(g.at) >= leases.Term {
		g.dirs, g.at = [2]map[metadata.Ino]struct{}{{}, g.dirs[0]}, now
	}
	g.dirs[0][dir] = struct{}{}
}

// among returns the inodes of inos, which this node has changed, that were added within the last lease term. The kernel
// must forget them: it then discards the answers to requests that it sent before.
func (g *givenDirs) among(inos []metadata.Ino) (given []metadata.Ino) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ino := range inos {
		_, now := g.dirs[0][ino]
		if _, before := g.dirs[1][ino]; now || before {
			given = append(given, ino)
		}
	}
	return given
}

// dropPages makes the kernel drop cached pages of files.
func (s *fsys) dropPages(files []metadata.Ino) {
	s.drops.Add(1)
	servers := s.covers.servers()
	if server := s.server.Load(); server != nil { // else nothing is cached yet
		servers = append(servers, server)
	}
	for _, server := range servers {
		for _, f := range files {
			_ = server.InodeNotify(uint64(f), 0, 0) // an unknown inode is no error
		}
	}
}

// dropTail makes the kernel drop the cached pages of a file from off to the end.
func (s *fsys) dropTail(ino metadata.Ino, off int64) {
	if server := s.server.Load(); server != nil {
		_ = server.InodeNotify(uint64(ino), off, 0) // an unknown inode is no error
	}
}

// Forget does nothing: the kernel's node ids are inode numbers.
func (s *fsys) Forget(_, _ uint64) { s.stats.calls[opForget].Add(1) }

// GetAttr serves stat, and the kernel's check before a read whether its cached pages are valid.
func (s *fsys) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.call(opGetattr, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		if a, ok := s.creations.take(in.Pid, ino); ok {
			fillAttrOut(out, &a, 0)
			return nil
		}
		a, left, err := s.attr(ctx, ino)
		if err == nil && left > 0 && a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
			s.given.add(ino, time.Now())
			a, left, err = s.attr(ctx, ino) // if it changes after this, the kernel is made to forget it
		}
		if errors.Is(err, syscall.ENOENT) {
			if was, ok := s.client.Removed(ino); ok { // it is still open, or a working directory
				fillAttrOut(out, &was, 0)
				return nil
			}
		}
		if err != nil {
			return stale(err)
		}
		s.announce(&a)
		fillAttrOut(out, &a, s.lease(&a, left))
		s.fillBlocks(ctx, &out.Attr, &a)
		if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
			s.markChanged(in.Fh(), &a, &out.Attr)
		}
		return nil
	})
}

// markChanged makes the kernel drop its pages if another node has changed the file since it was opened here. The kernel
// drops pages when st_mtime changes, but writers can set st_mtime back (cp -p, rsync --inplace -t, touch -r), and this
// node's own writes change it. So the answer before a read carries another time instead (pagecache.Shown). No process
// sees these times: stat asks without a handle and gets the true ones. If they differ, the kernel drops the pages once
// more.
func (s *fsys) markChanged(fh uint64, a *metadata.Attr, out *fuse.Attr) {
	h, err := s.handles.get(fh)
	t := a.Ctime
	switch {
	case err == nil && h.file != nil && !a.Ino.Sealed():
		t = h.file.PagesMtime(*a)
	case err == nil || !s.cfg.Adopt:
		return
	}
	out.Mtime, out.Mtimensec = split(t)
}

// SetAttr serves chmod, chown, utimens and truncate.
func (s *fsys) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.call(opSetattr, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		if err := writable(ino); err != nil {
			return err
		}
		s.creations.drop(ino)
		ch, err := change(in)
		if err != nil {
			return err
		}
		var a metadata.Attr
		if ch.Set == 0 {
			a, err = s.client.Getattr(ctx, ino)
		} else {
			a, err = s.client.Setattr(ctx, ino, ch)
		}
		if err != nil {
			return stale(err)
		}
		if k := s.handles.kernelSizeOf(ino); k != nil {
			k.announce(a.Size)
		}
		fillAttrOut(out, &a, 0)
		perturbMtime(&out.Attr)
		return nil
	})
}

// perturbMtime puts a wrong st_mtime into an answer to SETATTR. The kernel drops cached pages when an answer has a new
// size or time, but not for SETATTR: there it takes the time and keeps the pages, although another node may have
// written meanwhile. The kernel may not cache this answer, so it asks again before any read or stat, and then sees the
// true time as a change.
func perturbMtime(out *fuse.Attr) {
	if out.Mode&syscall.S_IFMT == syscall.S_IFREG {
		out.Mtimensec ^= 1
	}
}

// change translates a SETATTR request.
func change(in *fuse.SetAttrIn) (metadata.Change, error) {
	var c metadata.Change
	has := func(bit uint32) bool { return in.Valid&bit != 0 }
	if has(fuse.FATTR_MODE) {
		c.Set |= metadata.SetMode
		c.Mode = in.Mode & 0o7777
	}
	if has(fuse.FATTR_KILL_SUIDGID) {
		c.Set |= metadata.DropSetIDs
	}
	if has(fuse.FATTR_UID) {
		c.Set |= metadata.SetUID
		c.UID = in.Uid
	}
	if has(fuse.FATTR_GID) {
		c.Set |= metadata.SetGID
		c.GID = in.Gid
	}
	if has(fuse.FATTR_SIZE) {
		if in.Size > 1<<63-1 {
			return c, fmt.Errorf("size %d: %w", in.Size, syscall.EFBIG)
		}
		c.Set |= metadata.SetSize
		c.Size = int64(in.Size)
	}
	switch {
	case has(fuse.FATTR_ATIME_NOW):
		c.Set |= metadata.AtimeNow
	case has(fuse.FATTR_ATIME):
		c.Set |= metadata.SetAtime
		c.Atime = joined(in.Atime, in.Atimensec)
	}
	switch {
	case has(fuse.FATTR_MTIME_NOW):
		c.Set |= metadata.MtimeNow
	case has(fuse.FATTR_MTIME):
		c.Set |= metadata.SetMtime
		c.Mtime = joined(in.Mtime, in.Mtimensec)
	}
	return c, nil
}

// dropSetIDsOf is dropSetIDs, but asks the home for the mode first.
func (s *fsys) dropSetIDsOf(ctx context.Context, f *fsclient.File) error {
	if err := f.Refresh(ctx); err != nil {
		return err
	}
	return s.dropSetIDs(ctx, f)
}

// dropSetIDs clears setuid and setgid of a file that an unprivileged process changes.
func (s *fsys) dropSetIDs(ctx context.Context, f *fsclient.File) error {
	if metadata.SetIDs(f.Attr().Mode) == 0 {
		return nil
	}
	_, err := s.client.Setattr(ctx, f.Ino(), metadata.Change{Set: metadata.DropSetIDs})
	return err
}
