package mount

import (
	"context"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient"
)

const (
	// maxPipes is how many reads have pipes at a time, two each: ours, and the
	// FUSE library's for all of it with the header. The kernel bounds those of
	// a user, and then gives him only small ones.
	maxPipes = 16
	// pipeSize is the largest that any user may have. It has a place for each
	// 4 KiB, which a piece of any length takes: twice as many as a read has pages.
	pipeSize = 2 * maxWrite
	// pipedRead is the bytes of a read that goes through a pipe. For fewer the
	// library may have a pipe with fewer places than ours, and would answer with
	// what fits.
	pipedRead = maxWrite
)

// pipes is the pipes of reads whose bytes go from a socket or an object to the
// kernel without a copy in this process.
type pipes struct {
	mu   sync.Mutex
	free []*pipe // under mu
	used int     // under mu
	over bool    // under mu: the mount is gone
}

type pipe struct{ datapath.Pipe }

// get is an empty pipe, or nil where there is none to be had.
func (t *pipes) get() *pipe {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used == maxPipes || t.over {
		return nil
	}
	if n := len(t.free); n > 0 {
		p := t.free[n-1]
		t.free = t.free[:n-1]
		t.used++
		return p
	}
	p := newPipe()
	if p != nil {
		t.used++
	}
	return p
}

// newPipe is nil where this user has so many pipes that a large one is refused.
func newPipe() *pipe {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil
	}
	p := &pipe{datapath.Pipe{R: fds[0], W: fds[1]}}
	if n, err := unix.FcntlInt(uintptr(p.W), unix.F_SETPIPE_SZ, pipeSize); err != nil || n < pipeSize {
		p.close()
		return nil
	}
	return p
}

// put takes a pipe back. One in which there may be something is closed.
func (t *pipes) put(p *pipe) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.used--
	if t.over || p.Spoilt || p.N > 0 {
		p.close()
		return
	}
	t.free = append(t.free, p)
}

// inUse counts the pipes that reads have.
func (t *pipes) inUse() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// close is for the end of the mount.
func (t *pipes) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	for _, p := range t.free {
		p.close()
	}
	t.free = nil
}

func (p *pipe) close() {
	_ = unix.Close(p.R) // nobody wants what is in it
	_ = unix.Close(p.W)
}

// reader is a file that can be read (fsclient.File).
type reader interface {
	Read(ctx context.Context, p []byte, off int64, o fsclient.ReadOpts) (int, error)
}

// read fills buf or a pipe, and returns what has the bytes.
func (s *fsys) read(ctx context.Context, f reader, buf []byte, off int64) (fuse.ReadResult, error) {
	if err := s.reads.enter(ctx, len(buf)); err != nil {
		return nil, err
	}
	p, n, err := s.fill(ctx, f, buf, off)
	if n == 0 && err == nil { // of which the library is done without Done
		s.reads.leave(buf)
		return inMemory(nil), nil
	}
	if p == nil && err == nil {
		return &filled{bytes: [1][]byte{buf[:n]}, buf: buf, of: &s.reads}, nil
	}
	s.reads.leave(buf)
	if err != nil {
		return nil, err
	}
	return &piped{of: &s.pipes, pipe: p}, nil
}

// fill reads n bytes into buf, unless they are in the pipe that it returns.
func (s *fsys) fill(ctx context.Context, f reader, buf []byte, off int64) (p *pipe, n int, err error) {
	if len(buf) == pipedRead {
		p = s.pipes.get()
	}
	if p == nil {
		n, err = f.Read(ctx, buf, off, fsclient.ReadOpts{})
		return nil, n, err
	}
	n, err = f.Read(ctx, buf, off, fsclient.ReadOpts{Pipe: &p.Pipe})
	if err == nil && p.N == pipedRead {
		return p, n, nil
	}
	if err == nil && p.N > 0 {
		err = p.Take(buf)
	}
	s.pipes.put(p)
	return nil, n, err
}

// piped is the bytes in a pipe, which go to the kernel from there.
type piped struct {
	of   *pipes
	pipe *pipe
	lent bool // the library has taken them out, or some of them
}

var _ fuse.ReadResult = (*piped)(nil)

// Stateful is the pipe, for the FUSE library.
func (r *piped) Stateful() (fd uintptr, n int) {
	r.lent = true
	return uintptr(r.pipe.R), r.pipe.N
}

// Size is fuse.ReadResult.
func (r *piped) Size() int { return r.pipe.N }

// Bytes is fuse.ReadResult. It is called where the kernel could not be given the
// pipe. What was taken out of it by then is lost.
func (r *piped) Bytes(buf []byte) ([]byte, fuse.Status) {
	n := r.pipe.N
	if len(buf) < n || r.pipe.Take(buf) != nil {
		return nil, fuse.EIO
	}
	return buf[:n], fuse.OK
}

// Done is fuse.ReadResult.
func (r *piped) Done() {
	if r.lent {
		r.pipe.N = 0 // else it is what the library has looked for in vain
	}
	r.of.put(r.pipe)
}
