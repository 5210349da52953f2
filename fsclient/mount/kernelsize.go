package mount

import (
	"context"
	"slices"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// maxRereads bounds how often one read is continued because the file grows.
const maxRereads = 16

// kernelSize is the size that the kernel believes an open file has, as far as it matters to reads. The kernel pads a
// short answer with zeros to the end of the page. It takes the end of the answer for the end of the file, unless it has
// learned a size since it asked: then it shows the zeros as data up to that size. So no answer to a read may end below
// a size that the kernel learns before it has the answer: a read that would do so is continued, and a larger size is
// announced only after the answer.
type kernelSize struct {
	mu       sync.Mutex
	replied  sync.Cond // of mu: signalled after a change of replying
	size     int64     // under mu: the largest size that the kernel may have learned; a truncate may have cut it since
	replying []int64   // under mu: the ends of the short answers that are being given
}

func newKernelSize() *kernelSize {
	k := &kernelSize{}
	k.replied.L = &k.mu
	return k
}

// announce is called before the kernel learns a size. It reports whether the file has grown since the kernel last
// learned one. It waits until short answers below that size have been given.
func (k *kernelSize) announce(size int64) (grown bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	grown = k.size > 0 && size > k.size
	k.size = max(k.size, size)
	for slices.ContainsFunc(k.replying, func(end int64) bool { return end < size }) {
		k.replied.Wait() // no longer than a system call
	}
	return grown
}

// beginReply begins a short answer that ends at end. If the kernel may know a larger size, it begins none and returns
// that size.
func (k *kernelSize) beginReply(end int64) (size int64, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if end < k.size {
		return k.size, false
	}
	k.replying = append(k.replying, end)
	return 0, true
}

// endReply ends an answer that beginReply began.
func (k *kernelSize) endReply(end int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i := slices.Index(k.replying, end)
	k.replying = slices.Delete(k.replying, i, i+1)
	k.replied.Broadcast()
}

// cut records that the file has only size bytes, unless the kernel may have learned a size other than was.
func (k *kernelSize) cut(was, size int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.size == was {
		k.size = size
	}
}

// announce is called before the kernel learns the attributes a.
func (s *fsys) announce(a *metadata.Attr) {
	if k := s.handles.kernelSizeOf(a.Ino); k != nil && k.announce(a.Size) {
		s.handles.grew(a.Ino) // by writes of other nodes: the kernel knows its own
	}
}

// sizedRead reads a file into pages of the kernel.
type sizedRead struct {
	*fsclient.File
	size     *kernelSize
	end      int64 // end of the short answer that is being given
	replying bool  // a short answer is being given
}

// Read implements reader.
func (r *sizedRead) Read(ctx context.Context, p []byte, off int64, o fsclient.ReadOpts) (int, error) {
	n, err := r.File.Read(ctx, p, off, o)
	for again := 0; err == nil && n < len(p); again++ {
		known, ok := r.size.beginReply(off + int64(n))
		if ok {
			r.end, r.replying = off+int64(n), true
			break
		}
		if again == maxRereads {
			break
		}
		if n > 0 && o.Pipe != nil && o.Pipe.N > 0 {
			if err := o.Pipe.Take(p[:n]); err != nil {
				return 0, err
			}
		}
		if err := r.Refresh(ctx); err != nil {
			return 0, err
		}
		if size := r.Attr().Size; size < known {
			r.size.cut(known, size)
		}
		var m int
		o.Pipe = nil
		m, err = r.File.Read(ctx, p[n:], off+int64(n), o)
		n += m
	}
	return n, err
}

// done is called when the answer was given, or when there is none.
func (r *sizedRead) done() {
	if r.replying {
		r.replying = false
		r.size.endReply(r.end)
	}
}

// readCached reads a file whose pages the kernel caches.
func (s *fsys) readCached(ctx context.Context, h *handle, buf []byte, off int64, o fsclient.ReadOpts) (fuse.ReadResult, error) {
	r := &sizedRead{File: h.file, size: h.kernelSize}
	answered := false
	defer func() {
		if !answered { // also after a panic: announce waits for done
			r.done()
		}
	}()
	res, err := s.read(ctx, r, buf, off, o)
	if m, ok := res.(*memoryResult); ok && m.Size() > 0 { // the library does not call Done of other results
		m.sized, answered = r, true
	}
	return res, err
}
