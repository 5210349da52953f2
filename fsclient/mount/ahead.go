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

// Forecast tells which files of a dataset are read soon.
type Forecast interface {
	// Read takes note that somebody begins to read a file that the kernel does not have.
	Read(ino metadata.Ino)
	// Waited takes note that its reader has waited so long for it.
	Waited(ino metadata.Ino, took time.Duration)
	// Next is a file that is read soon. It waits until there is one; an error is that there will be none.
	Next(ctx context.Context) (metadata.Ino, error)
	// Later has a file told again, which cannot be had yet.
	Later(ino metadata.Ino)
}

const (
	storers     = 4           // files that are read ahead at a time
	unknownRest = time.Second // after a file that the kernel does not know: others it may not know, either
)

// storeAhead gives the kernel the files that are read soon (FUSE_NOTIFY_STORE), until what it returns is called.
func (c *coverFS) storeAhead(server *fuse.Server) (end func()) {
	if c.next == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range storers {
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
					retry.Pause(ctx, unknownRest) // Next says if ctx has ended
				}
			}
		})
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// store gives the kernel a file that has room in buf. EAGAIN is that nobody has it yet, ENOENT that the kernel does not
// know it; whatever else fails here is told to who reads the file.
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
		// What was read may be of before that, and the kernel have dropped what it had before it got this.
		_ = server.InodeNotify(uint64(ino), 0, 0)
	}
	if code == fuse.OK {
		c.s.stats.ahead.Add(1)
	}
	return code
}
