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
	maxReads  = maxBackground + directReads // with bytes in memory, at a time
	maxWrites = directWrites + idleReaders  // requests whose bytes are in memory, at a time, and readers for more
	// smallRead is a read whose memory is not counted.
	smallRead = 32 << 10
)

// Memory is the most that the requests of the kernel take: maxWrite bytes each.
// Those of the page cache are bounded by maxBackground, for any number of
// readers. A thread that writes, or reads with O_DIRECT, has one beside; when
// there are many of them, those that come last wait.
//
// Of writes the FUSE library reads no more from the kernel, nor anything else,
// until one of them is answered. Of reads more are read, but their memory is
// not touched before it is their turn, and given back to the kernel afterwards.
const Memory = (maxReads + maxWrites) * maxWrite

// reads bounds the memory of reads.
type reads struct {
	slots chan struct{} // one for each whose memory is in use
	begun atomic.Int64  // also those that wait
}

func (r *reads) init() { r.slots = make(chan struct{}, maxReads) }

// enter waits until a read of n bytes may use its memory.
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
		return fmt.Errorf("read among %d others: %w", maxReads, syscall.EINTR)
	}
}

// leave is the end of a read that has entered, with its memory.
func (r *reads) leave(buf []byte) {
	if len(buf) < smallRead {
		return
	}
	if r.begun.Add(-1) >= maxReads {
		forgetPages(buf)
	}
	<-r.slots
}

// forgetPages gives the pages of p back to the kernel, which has zeros there then.
func forgetPages(p []byte) {
	page := os.Getpagesize()
	first := -int(uintptr(unsafe.Pointer(unsafe.SliceData(p)))) & (page - 1)
	if n := (len(p) - first) &^ (page - 1); n > 0 {
		_ = unix.Madvise(p[first:first+n], unix.MADV_DONTNEED) // else they stay
	}
}

// filled is bytes in memory, which go to the kernel from where they are.
type filled struct {
	bytes [1][]byte
	buf   []byte // to leave with; nil is none
	of    *reads
	ended *ended // what wants to know when they are there; nil is nothing
}

var _ fuse.ReadResult = (*filled)(nil)

// inMemory is an answer of bytes that nobody changes.
func inMemory(p []byte) fuse.ReadResult { return &filled{bytes: [1][]byte{p}} }

// Slices is what the FUSE library writes, without a copy.
func (r *filled) Slices() ([][]byte, fuse.Status) { return r.bytes[:], fuse.OK }

// Bytes is fuse.ReadResult.
func (r *filled) Bytes([]byte) ([]byte, fuse.Status) { return r.bytes[0], fuse.OK }

// Size is fuse.ReadResult.
func (r *filled) Size() int { return len(r.bytes[0]) }

// Done is fuse.ReadResult.
func (r *filled) Done() {
	if r.ended != nil {
		r.ended.done()
	}
	if r.buf != nil {
		r.of.leave(r.buf)
	}
}
