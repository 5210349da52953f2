package mount

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// forEver is how long the kernel may keep what cannot change.
	forEver = 365 * 24 * time.Hour
	// dirFresh is how long the kernel may keep the attributes of a live
	// directory without a lease: long enough for the permission check that
	// follows a lookup. The kernel rounds it up to its clock tick.
	dirFresh = time.Millisecond
	// tickSlack is how much the kernel may round up what it keeps.
	tickSlack = 25 * time.Millisecond
	// setFresh is how long it may keep the name of a dataset, which can fail
	// after it was seen.
	setFresh = time.Second
	// lostFresh is how long it may keep those of a directory of which nothing is known.
	lostFresh = time.Second
	// blockSize is what programs are advised to read and write at once.
	blockSize = 64 << 10
)

// freshness is how long the kernel may keep a name and the attributes of a, if
// they are leased for left. A name that can change is never kept: to take it
// back from the kernel needs the lock of its directory, which may be held by
// who waits for just that.
func freshness(a *metadata.Attr, left time.Duration) (entry, attr time.Duration) {
	switch {
	case a.Ino == inoData:
		return forEver, setFresh
	case a.Ino == metadata.RootIno:
		return forEver, max(dirFresh, left-tickSlack)
	case virtual(a.Ino):
		return forEver, forEver
	case a.Ino.Sealed() && a.Ino.Part() == metadata.DirPart && a.Ino.Seq() == 0:
		return setFresh, forEver
	case a.Ino.Sealed():
		return forEver, forEver
	case a.Mode&syscall.S_IFMT == syscall.S_IFDIR:
		return 0, max(dirFresh, left-tickSlack)
	}
	return 0, 0
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

// split is t in seconds and nanoseconds; before 1970 the seconds are negative
// and the nanoseconds are not.
func split(t metadata.Time) (sec uint64, nsec uint32) {
	s, n := int64(t)/1e9, int64(t)%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	return uint64(s), uint32(n)
}

// joined is the other way. What does not fit in nanoseconds is cut.
func joined(sec uint64, nsec uint32) metadata.Time {
	const most = int64(1<<63-1) / 1e9
	s := min(max(int64(sec), -most), most-1)
	return metadata.Time(s*1e9 + int64(nsec))
}

func fillEntry(out *fuse.EntryOut, a *metadata.Attr) { fillKept(out, a, 0) }

// fillKept is fillEntry for attributes that are leased for left.
func fillKept(out *fuse.EntryOut, a *metadata.Attr, left time.Duration) {
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
		if r := traced(ctx); r != nil {
			r.what = name
		}
		dir := metadata.Ino(h.NodeId)
		if len(name) > metadata.MaxName {
			return syscall.ENAMETOOLONG
		}
		if virtual(dir) {
			return s.lookupVirtual(ctx, dir, name, out)
		}
		e, left, err := s.client.LookupLeased(ctx, dir, name)
		if err != nil && dir.Sealed() && errnoOf(err) == syscall.ENOENT {
			out.SetEntryTimeout(forEver) // no node id: the kernel keeps that there is no such name
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
		s.telling(e.Attr)
		fillKept(out, e.Attr, left)
		s.fillBlocks(ctx, &out.Attr, e.Attr)
		return nil
	})
}

// fillLost answers for a name whose inode was lost with its home: the kernel has to know it to
// have the name removed. Whoever wants more of a file, and be it the attributes, is told EIO when he asks for
// that. A directory has some: who does not know that it is one does not try rmdir.
func (s *fsys) fillLost(out *fuse.EntryOut, e *metadata.Entry) {
	s.complain(s.log.WithField("inode", e.Ino.String()), "a name in scratch leads to what was lost with a node: it can only be removed")
	a := metadata.Attr{Ino: e.Ino, Mode: e.Mode&syscall.S_IFMT | 0o600, Nlink: 1, UID: s.cfg.UID, GID: s.cfg.GID}
	if a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		a.Mode, a.Nlink = syscall.S_IFDIR|0o700, 2
		out.SetAttrTimeout(lostFresh)
	}
	out.NodeId = uint64(e.Ino)
	fillAttr(&out.Attr, &a)
}

func (s *fsys) lookupVirtual(ctx context.Context, dir metadata.Ino, name string, out *fuse.EntryOut) error {
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
		fillKept(out, &a, left)
		return nil
	}
	return syscall.ENOENT
}

// attr is the attributes of any inode, and for how long they are leased.
func (s *fsys) attr(ctx context.Context, ino metadata.Ino) (metadata.Attr, time.Duration, error) {
	if virtual(ino) {
		return s.virtualAttr(ino), 0, nil
	}
	return s.client.GetattrLeased(ctx, ino)
}

// forget has the kernel drop the attributes of directories.
func (s *fsys) forget(dirs []metadata.Ino) {
	server := s.server.Load()
	if server == nil {
		return // nothing was answered yet
	}
	for _, d := range dirs {
		// A negative offset leaves pages alone. What the kernel does not know
		// is no error.
		_ = server.InodeNotify(uint64(d), -1, 0)
	}
}

// dropPages has the kernel drop what it has read of files.
func (s *fsys) dropPages(files []metadata.Ino) {
	s.drops.Add(1)
	servers := s.covers.servers()
	if server := s.server.Load(); server != nil { // else nothing was read yet
		servers = append(servers, server)
	}
	for _, server := range servers {
		for _, f := range files {
			_ = server.InodeNotify(uint64(f), 0, 0) // what the kernel does not know is no error
		}
	}
}

// Forget has nothing to do: the kernel's node ids are inode numbers.
func (s *fsys) Forget(_, _ uint64) { s.stats.calls[opForget].Add(1) }

// GetAttr is stat, and the question before a read whether the pages are good.
func (s *fsys) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.call(opGetattr, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		if a, ok := s.newborns.take(in.Pid, ino); ok {
			fillAttrOut(out, &a, 0)
			return nil
		}
		a, left, err := s.attr(ctx, ino)
		if errors.Is(err, syscall.ENOENT) {
			if was, ok := s.client.Removed(ino); ok { // the kernel has it still, as its directory or ours
				fillAttrOut(out, &was, 0)
				return nil
			}
		}
		if err != nil {
			return held(err)
		}
		s.telling(&a)
		fillAttrOut(out, &a, left)
		s.fillBlocks(ctx, &out.Attr, &a)
		if in.Flags()&fuse.FUSE_GETATTR_FH != 0 {
			s.dated(in.Fh(), &a, &out.Attr)
		}
		return nil
	})
}

// dated makes the answer to who reads from a file tell by its time of modification
// whether the file has changed: the kernel drops its pages when that is another one
// than before, but who has written can set it back (cp -p, rsync --inplace -t,
// touch -r). So it is that of the last change of anything, of a file that has changed
// since it was opened here; the pages of before that were dropped by the open.
// Nobody is told the times of this answer. Who asks for them gets the true ones, by
// a question without a handle; if they differ, the kernel drops its pages once more.
func (s *fsys) dated(fh uint64, a *metadata.Attr, out *fuse.Attr) {
	h, err := s.handles.get(fh)
	if err == nil && h.file != nil && !a.Ino.Sealed() && h.file.Changed(*a) {
		out.Mtime, out.Mtimensec = out.Ctime, out.Ctimensec
	}
}

// SetAttr is chmod, chown, utimens and truncate.
func (s *fsys) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return s.call(opSetattr, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		if err := writable(ino); err != nil {
			return err
		}
		s.newborns.drop(ino)
		ch, err := change(in)
		if err != nil {
			return err
		}
		a, err := s.set(ctx, ino, ch)
		if err != nil {
			return held(err)
		}
		if e := s.handles.endsOf(ino); e != nil {
			e.tell(a.Size)
		}
		fillAttrOut(out, &a, 0)
		untimely(&out.Attr)
		return nil
	})
}

// untimely makes the time of modification in an answer to SETATTR one that the
// file does not have. The kernel drops its pages of a file when it hears of a
// new size or time, but takes the time of this answer, alone of all, and keeps
// them, although they can be older: another node may have written meanwhile, or
// the change itself have set the time. What it hears next, which is before
// anybody reads or is told the time, as it may not keep this, is new to it then.
func untimely(out *fuse.Attr) {
	if out.Mode&syscall.S_IFMT == syscall.S_IFREG {
		out.Mtimensec ^= 1
	}
}

// set applies ch; if there is nothing in it, it only asks.
func (s *fsys) set(ctx context.Context, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	if ch.Set == 0 {
		return s.client.Getattr(ctx, ino)
	}
	return s.client.Setattr(ctx, ino, ch)
}

// change translates what the kernel wants.
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

// dropSetIDsOf is dropSetIDs that asks which the file has: the home has not said so since
// the change, nor will hear of it.
func (s *fsys) dropSetIDsOf(ctx context.Context, f *fsclient.File) error {
	if err := f.Refresh(ctx); err != nil {
		return err
	}
	return s.dropSetIDs(ctx, f)
}

// dropSetIDs takes setuid and setgid off a file that was changed, or is about to be, by
// who may not keep them.
func (s *fsys) dropSetIDs(ctx context.Context, f *fsclient.File) error {
	if metadata.SetIDs(f.Attr().Mode) == 0 {
		return nil
	}
	_, err := s.client.Setattr(ctx, f.Ino(), metadata.Change{Set: metadata.DropSetIDs})
	return err
}
