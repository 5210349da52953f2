package mount

import (
	"context"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient/prefetch"
	"github.com/bivouacfs/bivouac/metadata"
)

// Prefetch knows the order in which files of a dataset are read, and fetches them ahead. prefetch.Engine implements it.
type Prefetch interface {
	// Read records a read of n bytes of a file through a connection. It returns the bytes if they are in memory or soon
	// will be, else nil. The bytes do not change.
	Read(ctx context.Context, from prefetch.Pages, ino metadata.Ino, off, n int64) []byte
}

// pages is the page cache of the kernel behind one connection.
type pages struct {
	s      *fsys
	server *fuse.Server
	// direct says that the kernel reads this node's files by itself.
	direct bool
}

var _ prefetch.Pages = (*pages)(nil)

// Mark implements prefetch.Pages.
func (p *pages) Mark() uint64 { return uint64(p.s.drops.Load()) }

// Direct implements prefetch.Pages.
func (p *pages) Direct() bool { return p.direct }

// Store implements prefetch.Pages by FUSE_NOTIFY_STORE. The kernel has inodes only for files that it has looked up.
func (p *pages) Store(ino metadata.Ino, off int64, b []byte, mark uint64) bool {
	if p.server.InodeNotifyStoreCache(uint64(ino), off, b) != fuse.OK {
		return false
	}
	p.s.stats.prefetched.Add(1)
	if p.Mark() != mark {
		// The bytes may have been read before the pages were dropped, and stored after.
		_ = p.server.InodeNotify(uint64(ino), off, int64(len(b)))
	}
	return true
}

// Drop implements prefetch.Pages by FUSE_NOTIFY_INVAL_INODE. An unknown inode is no error.
func (p *pages) Drop(ino metadata.Ino, off, n int64) { _ = p.server.InodeNotify(uint64(ino), off, n) }

// readAhead records a read of a dataset's file, and returns its bytes if they were prefetched.
func (p *pages) readAhead(ctx context.Context, next Prefetch, in *fuse.ReadIn, n int) fuse.ReadResult {
	if next == nil || p == nil {
		return nil
	}
	b := next.Read(ctx, p, metadata.Ino(in.NodeId), int64(in.Offset), int64(min(n, int(in.Size))))
	if b == nil {
		return nil
	}
	if in.Offset == 0 {
		p.s.stats.prefetched.Add(1)
	}
	return memoryOf(b)
}

// readSealed reads from a file of a dataset that is open on the main mount.
func (s *fsys) readSealed(ctx context.Context, h *handle, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, error) {
	if s.cfg.Prefetch != nil {
		if res := s.pages.Load().readAhead(ctx, s.cfg.Prefetch(h.file.Ino().Dataset()), in, len(buf)); res != nil {
			return res, nil
		}
	}
	return s.readFile(ctx, h, in, buf)
}
