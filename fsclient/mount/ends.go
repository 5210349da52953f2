package mount

import (
	"context"
	"slices"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// readAgains is how often one read follows a file that grows.
const readAgains = 16

// ends is where the kernel believes that a file that is open here ends, as far as
// it matters to reads. What a read does not have the kernel fills with zeros, up to the
// end of the page. It takes the end of a short answer for the end of the file, but not if it was
// told of a size since it asked: then it shows the zeros as data up to that size. So the answer
// to a read ends nowhere below a size that the kernel is told before it has the answer: a
// read that does is continued, and a larger size is told when the answer is given.
type ends struct {
	mu    sync.Mutex
	sent  sync.Cond // of mu: after a change of short
	told  int64     // under mu: the largest size of which the kernel may have heard; a truncate may have cut it since
	short []int64   // under mu: where the answers end that the kernel is being given
}

func newEnds() *ends {
	e := &ends{}
	e.sent.L = &e.mu
	return e
}

// tell is called before the kernel is told a size. It reports whether the file has grown
// since the kernel was told one.
func (e *ends) tell(size int64) (grown bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	grown = e.told > 0 && size > e.told
	e.told = max(e.told, size)
	for slices.ContainsFunc(e.short, func(end int64) bool { return end < size }) {
		e.sent.Wait() // for a system call
	}
	return grown
}

// give begins to give an answer that ends at end. If the kernel may know of more it does
// not, and returns how much.
func (e *ends) give(end int64) (told int64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if end < e.told {
		return e.told, false
	}
	e.short = append(e.short, end)
	return 0, true
}

// given ends what give began.
func (e *ends) given(end int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := slices.Index(e.short, end)
	e.short = slices.Delete(e.short, i, i+1)
	e.sent.Broadcast()
}

// cut takes back that the file had told bytes: it has only size.
func (e *ends) cut(told, size int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.told == told {
		e.told = size
	}
}

// telling is called before the kernel is told the attributes a.
func (s *fsys) telling(a *metadata.Attr) {
	if e := s.handles.endsOf(a.Ino); e != nil && e.tell(a.Size) {
		s.handles.grew(a.Ino) // not by writes of this node, of which the kernel knows
	}
}

// ended is a file that is read for pages of the kernel.
type ended struct {
	*fsclient.File
	ends *ends
	end  int64 // of a short answer that is not given yet
	open bool  // there is one
}

// Read is reader.
func (r *ended) Read(ctx context.Context, p []byte, off int64, o fsclient.ReadOpts) (int, error) {
	n, err := r.File.Read(ctx, p, off, o)
	for again := 0; err == nil && n < len(p); again++ {
		told, ok := r.ends.give(off + int64(n))
		if ok {
			r.end, r.open = off+int64(n), true
			break
		}
		if again == readAgains {
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
		if size := r.Attr().Size; size < told {
			r.ends.cut(told, size)
		}
		var m int
		m, err = r.File.Read(ctx, p[n:], off+int64(n), fsclient.ReadOpts{})
		n += m
	}
	return n, err
}

// done is called when the answer is given, or there is none.
func (r *ended) done() {
	if r.open {
		r.open = false
		r.ends.given(r.end)
	}
}

// readKept is read of a file of which the kernel keeps pages.
func (s *fsys) readKept(ctx context.Context, h *handle, buf []byte, off int64) (fuse.ReadResult, error) {
	r := &ended{File: h.file, ends: h.ends}
	answered := false
	defer func() {
		if !answered { // also by a bug of ours: others wait for it
			r.done()
		}
	}()
	res, err := s.read(ctx, r, buf, off)
	if f, ok := res.(*filled); ok && f.Size() > 0 { // of others the library does not say when they are given
		f.ended, answered = r, true
	}
	return res, err
}
