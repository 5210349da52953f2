package mount

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

const (
	maxReads  = maxBackground + directReads // reads that use their memory at the same time
	maxWrites = directWrites + idleReaders  // requests in memory at the same time, with the readers of the next ones
	// smallRead is the size below which a read's memory is not counted.
	smallRead = 32 << 10
)

// Memory is the most memory that the requests of the kernel take: maxWrite bytes each. Requests of the page cache are
// bounded by maxBackground, for any number of readers. Each thread that writes, or reads with O_DIRECT, has one more;
// beyond the limit they wait.
//
// With too many writes in flight the FUSE library reads no request at all until one is answered. It does read more read
// requests, but their memory is not touched before they are admitted, and is given back to the kernel afterwards.
const Memory = (maxReads + maxWrites) * maxWrite

// reads is the admission control of reads: it bounds their memory.
type reads struct {
	slots chan struct{} // one for each admitted read
	begun atomic.Int64  // includes waiting reads
}

func (r *reads) init() { r.slots = make(chan struct{}, maxReads) }

// enter waits until a read of n bytes is admitted.
func (r *reads) enter(ctx context.Context, n int) error {
	if n < smallRead {
		return nil
	}
	r.begun.Add(1)
	select {
	case r.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case r.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		r.begun.Add(-1)
		return fmt.Errorf("interrupted while waiting behind %d reads: %w", maxReads, syscall.EINTR)
	}
}

// leave ends an admitted read.
func (r *reads) leave(buf []byte) {
	if len(buf) < smallRead {
		return
	}
	if r.begun.Add(-1) >= maxReads {
		forgetPages(buf)
	}
	<-r.slots
}

// forgetPages gives the pages of p back to the kernel. They read as zeros afterwards.
func forgetPages(p []byte) {
	page := os.Getpagesize()
	first := -int(uintptr(unsafe.Pointer(unsafe.SliceData(p)))) & (page - 1)
	if n := (len(p) - first) &^ (page - 1); n > 0 {
		_ = unix.Madvise(p[first:first+n], unix.MADV_DONTNEED) // after an error they stay
	}
}

// memoryResult is an answer to a read from memory.
type memoryResult struct {
	bytes [1][]byte
	buf   []byte // of an admitted read, else nil
	of    *reads
	sized *sizedRead // notified when the answer was given; may be nil
}

var _ fuse.ReadResult = (*memoryResult)(nil)

// memoryOf returns an answer whose bytes do not change.
func memoryOf(p []byte) fuse.ReadResult { return &memoryResult{bytes: [1][]byte{p}} }

// Slices lets the FUSE library write without a copy.
func (r *memoryResult) Slices() ([][]byte, fuse.Status) { return r.bytes[:], fuse.OK }

// Bytes implements fuse.ReadResult.
func (r *memoryResult) Bytes([]byte) ([]byte, fuse.Status) { return r.bytes[0], fuse.OK }

// Size implements fuse.ReadResult.
func (r *memoryResult) Size() int { return len(r.bytes[0]) }

// Done implements fuse.ReadResult.
func (r *memoryResult) Done() {
	if r.sized != nil {
		r.sized.done()
	}
	if r.buf != nil {
		r.of.leave(r.buf)
	}
}
