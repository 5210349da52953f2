package mount

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// Prefetch predicts which files of a dataset are read next.
type Prefetch interface {
	// Read notes that a process begins to read a file that the kernel has not cached.
	Read(ino metadata.Ino)
	// Waited notes how long the reader of a file has waited for it.
	Waited(ino metadata.Ino, took time.Duration)
	// Next waits for a file to prefetch. After an error there will be none.
	Next(ctx context.Context) (metadata.Ino, error)
	// Later returns a file that is not staged yet: Next returns it again.
	Later(ino metadata.Ino)
}

const (
	prefetchers  = 4           // files that are prefetched at once
	unknownPause = time.Second // after a file that the kernel has not looked up: it may lack the next ones, too
)

// storePrefetched puts predicted files into the kernel's page cache
// (FUSE_NOTIFY_STORE), until end is called.
func (c *coverFS) storePrefetched(server *fuse.Server) (end func()) {
	if c.next == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range prefetchers {
		wg.Go(func() {
			var buf []byte
			for {
				ino, err := c.next.Next(ctx)
				if err != nil {
					return
				}
				if buf == nil {
					buf = make([]byte, maxWrite)
				}
				switch c.store(ctx, server, ino, buf) {
				case fuse.EAGAIN:
					c.next.Later(ino)
				case fuse.ENOENT:
					retry.Pause(ctx, unknownPause) // Next returns an error if ctx has ended
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// store puts a file that fits in buf into the page cache. EAGAIN means that the file is
// not staged yet, ENOENT that the kernel has not looked it up. Other errors are left to
// the readers of the file.
func (c *coverFS) store(ctx context.Context, server *fuse.Server, ino metadata.Ino, buf []byte) fuse.Status {
	drops := c.s.drops.Load()
	a, err := c.s.client.Getattr(ctx, ino)
	if err != nil || a.Mode&syscall.S_IFMT != syscall.S_IFREG || a.Size == 0 || a.Size > int64(len(buf)) {
		return fuse.OK
	}
	switch _, err := c.s.client.Read(ctx, a, buf[:a.Size], 0, fsclient.ReadOpts{NoWait: true}); {
	case errors.Is(err, syscall.EAGAIN):
		return fuse.EAGAIN
	case err != nil:
		return fuse.OK
	}
	code := server.InodeNotifyStoreCache(uint64(ino), 0, buf[:a.Size])
	if c.s.drops.Load() != drops {
		// The bytes may have been read before the pages were dropped, and stored after.
		_ = server.InodeNotify(uint64(ino), 0, 0)
	}
	if code == fuse.OK {
		c.s.stats.prefetched.Add(1)
	}
	return code
}
