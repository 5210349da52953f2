package slowpfs

import (
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// slowFS is a mount: the library's loopback, each request of which is counted and waits for the server.
type slowFS struct {
	fuse.RawFileSystem
	srv     *server
	count   counters
	flushes atomic.Int64 // requested by the kernel
}

// meta does a request that moves no file data.
func (f *slowFS) meta(cancel <-chan struct{}, k Kind, do func() fuse.Status) fuse.Status {
	came := f.srv.clock.now()
	st := fuse.EIO
	if !f.srv.fails() {
		st = do()
	}
	f.count.add(k, 0)
	f.srv.serve(cancel, came, 0)
	return st
}

// Read returns bytes that are already read: their number, which counts, is known then.
func (f *slowFS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	came := f.srv.clock.now()
	b, st := f.read(cancel, in, buf)
	f.count.add(Read, int64(len(b)))
	f.srv.serve(cancel, came, int64(len(b)))
	if !st.Ok() {
		return nil, st // the status of zero bytes would be OK
	}
	return fuse.ReadResultData(b), st
}

func (f *slowFS) read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) ([]byte, fuse.Status) {
	if f.srv.fails() {
		return nil, fuse.EIO
	}
	r, st := f.RawFileSystem.Read(cancel, in, buf)
	if r == nil || !st.Ok() {
		return nil, st
	}
	defer r.Done()
	return r.Bytes(buf)
}

func (f *slowFS) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	came := f.srv.clock.now()
	if f.srv.fails() {
		return 0, fuse.EIO
	}
	n, st := f.RawFileSystem.Write(cancel, in, data)
	f.count.add(Write, int64(n))
	f.srv.serve(cancel, came, int64(n))
	return n, st
}

func (f *slowFS) Writev(cancel <-chan struct{}, in *fuse.WriteIn, data [][]byte) (uint32, fuse.Status) {
	came := f.srv.clock.now()
	if f.srv.fails() {
		return 0, fuse.EIO
	}
	n, st := f.RawFileSystem.Writev(cancel, in, data)
	f.count.add(Write, int64(n))
	f.srv.serve(cancel, came, int64(n))
	return n, st
}

// Flush is not implemented, and the kernel asks once: a PFS server is not notified of a
// close, so close does not wait for this process either.
func (f *slowFS) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status {
	f.flushes.Add(1)
	return fuse.ENOSYS
}

// CopyFileRange is not implemented: the kernel reads and writes instead, which is counted.
func (f *slowFS) CopyFileRange(<-chan struct{}, *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	return 0, fuse.ENOSYS
}

func (f *slowFS) Lookup(c <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.meta(c, Lookup, func() fuse.Status { return f.RawFileSystem.Lookup(c, h, name, out) })
}

func (f *slowFS) GetAttr(c <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.meta(c, Getattr, func() fuse.Status { return f.RawFileSystem.GetAttr(c, in, out) })
}

func (f *slowFS) Statx(c <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	return f.meta(c, Getattr, func() fuse.Status { return f.RawFileSystem.Statx(c, in, out) })
}

func (f *slowFS) Open(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.meta(c, Open, func() fuse.Status { return f.RawFileSystem.Open(c, in, out) })
}

func (f *slowFS) OpenDir(c <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return f.meta(c, Open, func() fuse.Status { return f.RawFileSystem.OpenDir(c, in, out) })
}

func (f *slowFS) ReadDir(c <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.meta(c, Readdir, func() fuse.Status { return f.RawFileSystem.ReadDir(c, in, out) })
}

func (f *slowFS) Readlink(c <-chan struct{}, h *fuse.InHeader) (to []byte, st fuse.Status) {
	st = f.meta(c, Readlink, func() fuse.Status {
		var st fuse.Status
		to, st = f.RawFileSystem.Readlink(c, h)
		return st
	})
	return to, st
}

func (f *slowFS) SetAttr(c <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.SetAttr(c, in, out) })
}

func (f *slowFS) Create(c <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Create(c, in, name, out) })
}

func (f *slowFS) Mknod(c <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Mknod(c, in, name, out) })
}

func (f *slowFS) Mkdir(c <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Mkdir(c, in, name, out) })
}

func (f *slowFS) Unlink(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Unlink(c, h, name) })
}

func (f *slowFS) Rmdir(c <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Rmdir(c, h, name) })
}

func (f *slowFS) Rename(c <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Rename(c, in, from, to) })
}

func (f *slowFS) Link(c <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Link(c, in, name, out) })
}

func (f *slowFS) Symlink(c <-chan struct{}, h *fuse.InHeader, to, name string, out *fuse.EntryOut) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Symlink(c, h, to, name, out) })
}

func (f *slowFS) Fallocate(c <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.Fallocate(c, in) })
}

func (f *slowFS) Fsync(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return f.meta(c, Other, func() fuse.Status { return f.RawFileSystem.Fsync(c, in) })
}

func (f *slowFS) FsyncDir(c <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return f.meta(c, Other, func() fuse.Status { return f.RawFileSystem.FsyncDir(c, in) })
}

func (f *slowFS) Lseek(c <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return f.meta(c, Other, func() fuse.Status { return f.RawFileSystem.Lseek(c, in, out) })
}

func (f *slowFS) StatFs(c <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return f.meta(c, Other, func() fuse.Status { return f.RawFileSystem.StatFs(c, h, out) })
}

func (f *slowFS) GetXAttr(c <-chan struct{}, h *fuse.InHeader, attr string, dest []byte) (n uint32, st fuse.Status) {
	st = f.meta(c, Other, func() fuse.Status {
		var st fuse.Status
		n, st = f.RawFileSystem.GetXAttr(c, h, attr, dest)
		return st
	})
	return n, st
}

func (f *slowFS) ListXAttr(c <-chan struct{}, h *fuse.InHeader, dest []byte) (n uint32, st fuse.Status) {
	st = f.meta(c, Other, func() fuse.Status {
		var st fuse.Status
		n, st = f.RawFileSystem.ListXAttr(c, h, dest)
		return st
	})
	return n, st
}

func (f *slowFS) SetXAttr(c <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.SetXAttr(c, in, attr, data) })
}

func (f *slowFS) RemoveXAttr(c <-chan struct{}, h *fuse.InHeader, attr string) fuse.Status {
	return f.meta(c, Change, func() fuse.Status { return f.RawFileSystem.RemoveXAttr(c, h, attr) })
}
