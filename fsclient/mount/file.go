package mount

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/pagecache"
	"github.com/bivouacfs/bivouac/metadata"
)

// Open opens an existing file.
func (s *fsys) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return s.call(opOpen, cancel, &in.InHeader, func(ctx context.Context) error {
		ino := metadata.Ino(in.NodeId)
		if in.Flags&syscall.O_ACCMODE != syscall.O_RDONLY {
			if err := writable(ino); err != nil {
				return err
			}
		}
		if virtual(ino) {
			return s.openVirtual(&in.InHeader, out)
		}
		if s.openRegistered(&in.InHeader, out) {
			return nil
		}
		s.creations.drop(ino)
		f, err := s.openFile(ctx, ino, in.Flags)
		if err != nil {
			return err
		}
		s.opened(&in.InHeader, f, in.Flags, out)
		if in.Flags&syscall.O_ACCMODE == syscall.O_RDWR && !ino.Sealed() {
			s.forget([]metadata.Ino{ino}) // the kernel does not notice that a mapping changes st_mtime
		}
		return nil
	})
}

// openFile opens a file of a dataset or of the live realm.
func (s *fsys) openFile(ctx context.Context, ino metadata.Ino, flags uint32) (*fsclient.File, error) {
	if mappable(flags) && !ino.Sealed() {
		return s.client.OpenToMap(ctx, ino)
	}
	return s.client.Open(ctx, ino)
}

// mappable reports whether the kernel could map a file opened with flags as shared and writable. Descriptors with
// O_APPEND are not cached.
func mappable(flags uint32) bool {
	return flags&syscall.O_ACCMODE == syscall.O_RDWR && flags&syscall.O_APPEND == 0
}

// openVirtual reads the content once, for all reads of this open.
func (s *fsys) openVirtual(in *fuse.InHeader, out *fuse.OpenOut) error {
	b, err := s.virtualContent(metadata.Ino(in.NodeId))
	if err != nil {
		return err
	}
	out.Fh = s.takeover.add(&handle{content: b}, in, metadata.Ino(in.NodeId), 0)
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_NOFLUSH
	return nil
}

func (s *fsys) opened(in *fuse.InHeader, f *fsclient.File, flags uint32, out *fuse.OpenOut) {
	h := &handle{file: f, syncer: f.Writer()}
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		h.writer = h.syncer
		h.writer.ForWriting()
	}
	h.appends = h.writer != nil && flags&syscall.O_APPEND != 0
	switch {
	case f.Ino().Sealed():
		s.openSealed(h, out)
	case mappable(flags) && !f.Maps():
		// Another node may map the file shared and writable. Mappings of two nodes are not coherent, and the kernel
		// does not announce them; it refuses them (ENODEV) for descriptors that bypass the page cache.
		h.direct = true
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	case h.appends || h.writer == nil && s.dropsDirect && s.handles.growing(f.Ino(), f.Alone()):
		// The kernel does not know where appended bytes go, and extends the file at once. Until it drops a reader's
		// cached pages, it would show the zeros behind the end in them as data. The same happens when one thread learns
		// of a larger size while another reads: the kernel takes the size first and drops the pages afterwards. So such
		// files are not cached. If only this node appends, Write drops the pages in time.
		h.direct = true
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	case flags&syscall.O_ACCMODE == syscall.O_WRONLY && s.dropsDirect:
		// No read or mapping uses this descriptor. Bypassing the page cache saves a copy and, before Linux 5.11, a
		// request for security.capability before each write. The kernel drops the pages of readers before the write.
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO
	}
	if !f.Ino().Sealed() {
		s.keepPages(h, out)
	}
	if h.writer == nil && f.Ino().Sealed() {
		out.OpenFlags |= fuse.FOPEN_NOFLUSH // FLUSH of other files ends locks
	}
	out.Fh = s.takeover.add(h, in, f.Ino(), flags)
}

// keepPages makes the kernel keep the pages of a live file that has not changed since they were read.
func (s *fsys) keepPages(h *handle, out *fuse.OpenOut) {
	v := pagecache.Version{Epoch: s.client.Epoch(), Home: h.file.HomeRun(), Ctime: h.file.Attr().Ctime}
	if v.Home == 0 {
		return
	}
	if s.cached.Fresh(h.file.Ino(), v) {
		out.OpenFlags |= fuse.FOPEN_KEEP_CACHE
		return
	}
	h.drops.Store(&v)
}

// confirmDrop records that the kernel uses h: the open that dropped the pages has finished.
func (h *handle) confirmDrop(cached *pagecache.Table) {
	if h.drops.Load() == nil {
		return
	}
	if v := h.drops.Swap(nil); v != nil {
		cached.Dropped(h.file.Ino(), *v)
	}
}

// Create creates a file and opens it. The kernel has found no such name, but another node may have created it since.
func (s *fsys) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return s.change(opCreate, cancel, &in.InHeader, name, func(ctx context.Context, dir metadata.Ino) error {
		n := metadata.New{Mode: syscall.S_IFREG | in.Mode&0o7777, UID: in.Uid, GID: in.Gid}
		if in.Unique&resent != 0 && in.Flags&syscall.O_EXCL != 0 && name != "" {
			return errResent
		}
		create := s.client.CreateOpen
		if mappable(in.Flags) {
			create = s.client.CreateToMap
		}
		f, a, err := create(ctx, dir, name, n)
		if errors.Is(err, syscall.EEXIST) && in.Flags&syscall.O_EXCL == 0 {
			return s.openExisting(ctx, in, a.Ino, out)
		}
		if err != nil {
			return err
		}
		fillEntry(&out.EntryOut, &a)
		s.creations.add(in.Pid, a)
		s.opened(&in.InHeader, f, in.Flags, &out.OpenOut)
		return nil
	})
}

// openExisting opens the file that Create found, if the caller owns it. Otherwise it returns ESTALE, which makes the
// kernel look the name up again and check the permissions; the kernel does not check them for a new file.
func (s *fsys) openExisting(ctx context.Context, in *fuse.CreateIn, ino metadata.Ino, out *fuse.CreateOut) error {
	a, err := s.client.Getattr(ctx, ino)
	if err != nil || a.Mode&syscall.S_IFMT != syscall.S_IFREG || !ownerMay(&in.InHeader, &a, in.Flags) {
		return syscall.ESTALE
	}
	f, err := s.openFile(ctx, ino, in.Flags)
	if err != nil {
		return err
	}
	a = f.Attr() // the kernel takes its size
	if in.Flags&syscall.O_TRUNC != 0 {
		ch := metadata.Change{Set: metadata.SetSize}
		if in.Uid != 0 {
			ch.Set |= metadata.DropSetIDs
		}
		if a, err = s.client.Setattr(ctx, ino, ch); err != nil {
			return errors.Join(stale(err), f.Close(ctx))
		}
	}
	s.announce(&a)
	fillEntry(&out.EntryOut, &a)
	s.opened(&in.InHeader, f, in.Flags, &out.OpenOut)
	return nil
}

// ownerMay reports whether the caller owns the file and may open it with flags.
func ownerMay(h *fuse.InHeader, a *metadata.Attr, flags uint32) bool {
	want := uint32(0o600)
	switch flags & syscall.O_ACCMODE {
	case syscall.O_RDONLY:
		want = 0o400
	case syscall.O_WRONLY:
		want = 0o200
	}
	if flags&syscall.O_TRUNC != 0 {
		want |= 0o200
	}
	return h.Uid == a.UID && a.Mode&want == want
}

// Tmpfile creates a file without a name and opens it (O_TMPFILE).
func (s *fsys) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return s.Create(cancel, in, "", out)
}

// Read reads from an open file.
func (s *fsys) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (res fuse.ReadResult, code fuse.Status) {
	code = s.call(opRead, cancel, &in.InHeader, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = span(in.Offset, uint64(len(buf)))
		}
		h, err := s.takeover.handle(ctx, in.Fh)
		if err != nil {
			return err
		}
		buf = buf[:min(len(buf), int(in.Size))]
		h.confirmDrop(&s.cached)
		if h.direct {
			if err := h.file.Refresh(ctx); err != nil {
				return stale(err)
			}
		}
		switch {
		case h.file != nil && h.file.Ino().Sealed():
			res, err = s.readSealed(ctx, h, in, buf)
		case h.file != nil:
			res, err = s.readFile(ctx, h, in, buf)
		case h.backing != nil:
			err = fmt.Errorf("inode %v: read through the mount although it uses passthrough: %w", h.backing.ino, syscall.EIO)
		default:
			rest := h.content[min(in.Offset, uint64(len(h.content))):]
			res = memoryOf(rest[:min(len(rest), len(buf))])
		}
		return stale(err)
	})
	if code != fuse.OK {
		return nil, code
	}
	return res, code
}

// readFile reads from the file of h.
func (s *fsys) readFile(ctx context.Context, h *handle, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, error) {
	off, o := int64(in.Offset), fsclient.ReadOpts{Direct: in.Flags&syscall.O_DIRECT != 0}
	if h.kernelSize == nil || h.direct {
		return s.read(ctx, h.file, buf, off, o)
	}
	return s.readCached(ctx, h, buf, off, o)
}

// Write writes to an open file.
func (s *fsys) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (written uint32, code fuse.Status) {
	code = s.call(opWrite, cancel, &in.InHeader, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = span(in.Offset, uint64(len(data)))
		}
		h, err := s.takeover.handle(ctx, in.Fh)
		if err != nil {
			return err
		}
		if h.writer == nil {
			return syscall.EBADF
		}
		s.creations.drop(h.file.Ino())
		if dropsSetIDs(h, in) {
			h.file.DropSetIDsOnWrite()
			if err := s.dropSetIDs(ctx, h.file); err != nil {
				return stale(err)
			}
		}
		if in.Unique&resent != 0 && in.Flags&syscall.O_APPEND != 0 && in.WriteFlags&fuse.WRITE_CACHE == 0 {
			h.writer.Repeat(errResent)
			return errResent
		}
		if !intoPages(h, in) {
			h.file.PagesMiss()
		}
		n, err := s.writeDurable(ctx, h, in, data)
		s.takeover.settle(h)
		if n > 0 && in.WriteFlags&fuse.WRITE_CACHE == 0 {
			err = nil // a short write; the next one returns the error
		}
		if n > 0 {
			s.wrote(ctx, h, int64(in.Offset), n)
		}
		written = uint32(n)
		return stale(err)
	})
	return written, code
}

// visiblePatience bounds how long an append waits for earlier appends of other nodes, for the sake of readers here
// whose pages the kernel caches.
const visiblePatience = time.Second

// wrote prepares for the kernel's reaction to a write of n bytes at off: it takes off+n for the size. After an append,
// cached pages may contain zeros below that.
func (s *fsys) wrote(ctx context.Context, h *handle, off int64, n int) {
	tail := h.appends && s.handles.cached(h.file.Ino())
	if tail && !h.file.Alone() {
		ctx, cancel := context.WithTimeout(ctx, visiblePatience)
		_ = h.file.AwaitVisible(ctx) // an error is ignored: the bytes are written
		cancel()
	}
	h.kernelSize.announce(off + int64(n))
	if tail {
		s.dropTail(h.file.Ino(), off)
	}
}

// dropsSetIDs reports whether a write clears setuid and setgid. The kernel has a flag for that; before Linux 5.2 it
// does not set it in writes that bypass the page cache.
func dropsSetIDs(h *handle, in *fuse.WriteIn) bool {
	return in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 || h.appends && in.WriteFlags&fuse.WRITE_CACHE == 0 && in.Uid != 0
}

// intoPages reports whether the kernel has locked the pages of a write and copied the bytes there. When a write
// bypasses the page cache, the pages dropped before it can be read again, with the old bytes, while the write is in
// flight; older kernels do not drop them again.
func intoPages(h *handle, in *fuse.WriteIn) bool {
	return in.WriteFlags&fuse.WRITE_CACHE != 0 || mappable(in.Flags) && !h.direct && in.Flags&syscall.O_DIRECT == 0
}

// throughFlags are the flags of descriptors whose writes are not buffered.
const throughFlags = syscall.O_SYNC | syscall.O_DSYNC | syscall.O_DIRECT

// writeDurable is write followed by a sync for O_SYNC. The kernel asks for that sync itself only if it wrote to its
// pages.
func (s *fsys) writeDurable(ctx context.Context, h *handle, in *fuse.WriteIn, data []byte) (int, error) {
	n, err := s.write(ctx, h, in, data)
	if n > 0 && in.Flags&syscall.O_DSYNC != 0 && in.WriteFlags&fuse.WRITE_CACHE == 0 {
		if err := h.writer.SyncWrite(ctx); err != nil {
			return 0, err
		}
	}
	return n, err
}

// write writes at the kernel's offset or, with O_APPEND, at the end of the file. A descriptor can get that flag later,
// so the request's flag decides. Write-back of a mapping uses its own offset, and may belong to another descriptor.
func (s *fsys) write(ctx context.Context, h *handle, in *fuse.WriteIn, data []byte) (int, error) {
	through := in.Flags&throughFlags != 0
	switch {
	case in.WriteFlags&fuse.WRITE_CACHE != 0:
		return h.file.WriteAt(ctx, data, int64(in.Offset))
	case in.Flags&syscall.O_APPEND != 0:
		n, err := appendTo(ctx, h.writer, data, through)
		if n > 0 && h.appends && in.Uid != 0 { // because the answer to the append has the mode
			err = errors.Join(err, s.dropSetIDs(ctx, h.file))
		}
		return n, err
	case through:
		return h.writer.WriteThrough(ctx, data, int64(in.Offset))
	}
	return h.writer.WriteAt(ctx, data, int64(in.Offset))
}

func appendTo(ctx context.Context, w *fsclient.Writer, data []byte, through bool) (int, error) {
	if through {
		return w.AppendThrough(ctx, data)
	}
	return w.Append(ctx, data)
}

// Flush serves every close: it reports the writes to the file's home, so that the next open on any node sees them.
func (s *fsys) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	return s.call(opFlush, cancel, &in.InHeader, func(ctx context.Context) error {
		h, err := s.takeover.handle(ctx, in.Fh)
		if err != nil || h.file == nil {
			return err
		}
		h.confirmDrop(&s.cached)
		if h.writer != nil { // the next holder of a lock must see the writes
			err = h.writer.Flush(ctx)
			h.settle()
		}
		// A process that closes any descriptor of a file loses its fcntl locks on it.
		h.unlocked(lockOwner{metadata.PosixLock, in.LockOwner})
		return errors.Join(err, s.client.UnlockAll(ctx, h.file.Ino(), metadata.PosixLock, in.LockOwner))
	})
}

// Fsync makes an open file durable.
func (s *fsys) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return s.call(opFsync, cancel, &in.InHeader, func(ctx context.Context) error {
		h, err := s.takeover.handle(ctx, in.Fh)
		if err != nil || h.file == nil {
			return err
		}
		err = h.syncer.Sync(ctx)
		h.settle()
		return err
	})
}

// Release is called after the last descriptor is closed. No process can receive an error any more, so errors are
// logged.
func (s *fsys) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	s.stats.calls[opRelease].Add(1)
	release(s, metadata.Ino(in.NodeId), in.Fh)
}

func release(s *fsys, ino metadata.Ino, fh uint64) {
	h := s.takeover.remove(fh)
	if h == nil {
		return
	}
	s.unlock(context.Background(), ino, h)
	s.backings.close(h.backing)
	if h.file == nil {
		return
	}
	s.creations.drop(ino)
	if err := h.close(context.Background()); err != nil {
		s.fail(opRelease, uint64(ino), err)
	}
}
