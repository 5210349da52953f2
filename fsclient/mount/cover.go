package mount

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// A dataset of small files can have a connection of its own, mounted read-only over its directory (Mount.Cover). On it
// the kernel opens and closes files and directories without a request, a mode that it learns once for a whole
// connection: cached files cost no request, and a small file that is not cached costs one lookup and one read. Large
// files are better served by the mount below, because passthrough needs an open request. A cover only makes reads
// faster: the mount below has the same files under the same inode numbers, and serves them where there is no cover.
// Differences:
//
//	st_dev          is not that of the mount below
//	rename, link    out of a cover are EXDEV, as between any two mounts
//	rmdir, rename   of its directory are EBUSY for users who may write data/
//	locks           are the kernel's, on this node only
//
// When the dataset's name is removed, or names another dataset, the kernel finds out at the next lookup of the name in
// the mount below, and detaches the cover. So that name must not be invalidated while the dataset exists.
//
// Pages of a covered file that is whole on this node can be cached twice, as the file's and as its object's. The
// object's pages stay after a read: other nodes read the same object by sendfile, and the kernel drops pages that were
// used once first.

// coverBackground is how many background requests a cover has in flight: its files are
// small, and each is one request.
const coverBackground = 16

// CoverMemory bounds the memory that the requests of one cover take, as Memory does for the mount below it.
const CoverMemory = (coverBackground + idleReaders) * maxWrite

// Cover is a dataset's own connection to the kernel.
type Cover struct {
	server *fuse.Server
	fs     *coverFS
	served chan struct{} // closed when Serve returns
	all    *covers
}

// covers is the set of covers that are served.
type covers struct {
	mu  sync.Mutex
	all map[*Cover]struct{} // guarded by mu
}

func (c *covers) add(x *Cover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = make(map[*Cover]struct{})
	}
	c.all[x] = struct{}{}
}

func (c *covers) remove(x *Cover) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, x)
}

// servers returns the connections of the covers.
func (c *covers) servers() (all []*fuse.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for x := range c.all {
		all = append(all, x.server)
	}
	return all
}

// Cover returns a server for the dataset whose root directory is root. dev is a descriptor of /dev/fuse that is mounted
// read-only over that directory; the caller closes it. Uses of the mount wait until Serve runs. Unmount detaches
// covers, too. next prefetches the files that are read through the cover; it may be nil.
func (m *Mount) Cover(dev *os.File, root metadata.Ino, next Prefetch) (*Cover, error) {
	fs := &coverFS{RawFileSystem: fuse.NewDefaultRawFileSystem(), s: m.fs, root: root, next: next, pages: pages{s: m.fs}}
	return m.adopt(dev, fs, fs)
}

// adopt makes a server on dev for fs, which is or embeds of.
func (m *Mount) adopt(dev *os.File, fs fuse.RawFileSystem, of *coverFS) (*Cover, error) {
	root := of.root
	fd, err := unix.FcntlInt(dev.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cover of inode %v: %w", root, err)
	}
	server, err := fuse.NewServer(fs, fmt.Sprint(fdPrefix, fd), &fuse.MountOptions{
		Options:       []string{"default_permissions"},
		MaxBackground: coverBackground,
		MaxWrite:      maxWrite, // also bounds reads
		FsName:        fsName,
		Name:          fsName,
		Logger:        log.New(&logWriter{m.cfg.Log}, "", 0),
		PanicHandler:  m.panicked,
	})
	if err != nil {
		return nil, fmt.Errorf("cover of inode %v: %w", root, err)
	}
	m.covered.Store(true)
	of.pages.server = server
	return &Cover{server: server, fs: of, served: make(chan struct{}), all: &m.fs.covers}, nil
}

// Serve answers the kernel until the cover is detached and no longer in use. It is called once.
func (c *Cover) Serve() {
	defer close(c.served)
	c.all.add(c)
	defer c.all.remove(c)
	c.server.Serve()
}

// Served is closed when Serve has returned.
func (c *Cover) Served() <-chan struct{} { return c.served }

// coverFS serves one dataset as the root of a connection. All other requests get ENOSYS, after which the kernel does
// without them and never asks again: open, release, opendir, releasedir, flush, locks, lseek. No changes arrive here,
// because the mount is read-only.
type coverFS struct {
	fuse.RawFileSystem

	s       *fsys
	root    metadata.Ino
	next    Prefetch // may be nil
	pages   pages
	cursors cursors
}

// String returns the name of the file system.
func (c *coverFS) String() string { return fsName }

// at translates the root of the connection to its inode.
func (c *coverFS) at(h *fuse.InHeader) {
	if h.NodeId == fuse.FUSE_ROOT_ID {
		h.NodeId = uint64(c.root)
	}
}

// Lookup finds a name.
func (c *coverFS) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	c.at(h)
	return c.s.Lookup(cancel, h, name, out)
}

// Forget does nothing.
func (c *coverFS) Forget(node, n uint64) { c.s.Forget(node, n) }

// GetAttr serves stat.
func (c *coverFS) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	c.at(&in.InHeader)
	return c.s.GetAttr(cancel, in, out)
}

// Readlink returns the target of a symbolic link.
func (c *coverFS) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	return c.s.Readlink(cancel, h)
}

// GetXAttr reads an extended attribute.
func (c *coverFS) GetXAttr(cancel <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	c.at(h)
	return c.s.GetXAttr(cancel, h, name, dest)
}

// ListXAttr lists the extended attributes.
func (c *coverFS) ListXAttr(cancel <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	c.at(h)
	return c.s.ListXAttr(cancel, h, dest)
}

// StatFs returns the size of the dataset.
func (c *coverFS) StatFs(cancel <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	c.at(h)
	return c.s.StatFs(cancel, h, out)
}

// Open makes the kernel open files without asking.
func (c *coverFS) Open(_ <-chan struct{}, _ *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	c.s.stats.calls[opOpen].Add(1)
	return fuse.ENOSYS
}

// OpenDir makes the kernel open directories without asking, and cache their entries.
func (c *coverFS) OpenDir(_ <-chan struct{}, _ *fuse.OpenIn, _ *fuse.OpenOut) fuse.Status {
	c.s.stats.calls[opOpendir].Add(1)
	return fuse.ENOSYS
}

// Flush does nothing: no file is written here.
func (c *coverFS) Flush(_ <-chan struct{}, _ *fuse.FlushIn) fuse.Status {
	c.s.stats.calls[opFlush].Add(1)
	return fuse.ENOSYS
}

// closedFile is a file that is read without an open.
type closedFile struct {
	client *fsclient.Client
	attr   metadata.Attr
}

// Read reads from the file.
func (u closedFile) Read(ctx context.Context, p []byte, off int64, o fsclient.ReadOpts) (int, error) {
	return u.client.Read(ctx, u.attr, p, off, o)
}

// Read reads from a file that the kernel has opened without asking.
func (c *coverFS) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (res fuse.ReadResult, code fuse.Status) {
	code = c.s.call(opRead, cancel, &in.InHeader, func(ctx context.Context) error {
		if r := traced(ctx); r != nil {
			r.what = span(in.Offset, uint64(in.Size))
		}
		if res = c.pages.readAhead(ctx, c.next, in, len(buf)); res != nil {
			return nil
		}
		a, err := c.s.client.Getattr(ctx, metadata.Ino(in.NodeId))
		if err != nil {
			return stale(err)
		}
		res, err = c.s.read(ctx, closedFile{c.s.client, a}, buf[:min(len(buf), int(in.Size))], int64(in.Offset), fsclient.ReadOpts{})
		return stale(err)
	})
	if code != fuse.OK {
		return nil, code
	}
	return res, code
}

// ReadDir lists names.
func (c *coverFS) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return c.s.call(opReaddir, cancel, &in.InHeader, func(ctx context.Context) error {
		return c.list(ctx, in, func(e *metadata.Entry, off uint64) bool { return out.AddDirEntry(dirEntry(e, off)) })
	})
}

// ReadDirPlus lists names with attributes.
func (c *coverFS) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return c.s.call(opReaddirplus, cancel, &in.InHeader, func(ctx context.Context) error {
		return c.list(ctx, in, func(e *metadata.Entry, off uint64) bool { return addPlus(out, e, off) })
	})
}

func (c *coverFS) list(ctx context.Context, in *fuse.ReadIn, add func(e *metadata.Entry, off uint64) bool) error {
	c.at(&in.InHeader)
	dir := metadata.Ino(in.NodeId)
	if dir.Part() != metadata.DirPart {
		return fmt.Errorf("inode %v: %w", dir, syscall.ENOTDIR)
	}
	cur := c.cursors.get(dir, func() *cursor { return newCursor(c.s.client.List(dir).Read) })
	return listFrom(ctx, cur, in, false, add)
}
