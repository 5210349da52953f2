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
	// maxPipes bounds the reads that have pipes at once. Each has two: ours, and the FUSE library's for the answer with
	// its header. The kernel limits the large pipes of a user.
	maxPipes = 16
	// pipeSize is the largest size that any user may have. It has a slot for each 4 KiB, which a piece of any length
	// takes: twice as many slots as a read has pages.
	pipeSize = 2 * maxWrite
	// pipedRead is the length of a read that goes through a pipe. For shorter ones the
	// library may have a pipe with fewer slots than ours, and would cut the answer.
	pipedRead = maxWrite
)

// pipes is the pool of pipes for reads whose bytes go from a socket or an object to the kernel without a copy in this
// process.
type pipes struct {
	mu   sync.Mutex
	free []*pipe // under mu
	used int     // under mu
	over bool    // under mu: the mount was unmounted
}

type pipe struct{ datapath.Pipe }

// get returns an empty pipe, or nil if there is none.
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

// newPipe makes a pipe; it returns nil if the kernel refuses this user another large pipe.
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

// put takes a pipe back. A pipe that may not be empty is closed.
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

// inUse counts the pipes in use.
func (t *pipes) inUse() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.used
}

// close closes all pipes.
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
	_ = unix.Close(p.R) // its content is not needed
	_ = unix.Close(p.W)
}

// reader is a file that can be read (fsclient.File).
type reader interface {
	Read(ctx context.Context, p []byte, off int64, o fsclient.ReadOpts) (int, error)
}

// read reads into buf or a pipe, and returns an answer with the bytes.
func (s *fsys) read(ctx context.Context, f reader, buf []byte, off int64, o fsclient.ReadOpts) (fuse.ReadResult, error) {
	if err := s.reads.enter(ctx, len(buf)); err != nil {
		return nil, err
	}
	p, n, err := s.fill(ctx, f, buf, off, o)
	if n == 0 && err == nil { // the library does not call Done of empty results
		s.reads.leave(buf)
		return memoryOf(nil), nil
	}
	if p == nil && err == nil {
		return &memoryResult{bytes: [1][]byte{buf[:n]}, buf: buf, of: &s.reads}, nil
	}
	s.reads.leave(buf)
	if err != nil {
		return nil, err
	}
	return &pipeResult{of: &s.pipes, pipe: p}, nil
}

// fill reads n bytes into buf, or into the pipe that it returns.
func (s *fsys) fill(ctx context.Context, f reader, buf []byte, off int64, o fsclient.ReadOpts) (p *pipe, n int, err error) {
	if len(buf) == pipedRead {
		p = s.pipes.get()
	}
	if p == nil {
		n, err = f.Read(ctx, buf, off, o)
		return nil, n, err
	}
	o.Pipe = &p.Pipe
	n, err = f.Read(ctx, buf, off, o)
	if err == nil && p.N == pipedRead {
		return p, n, nil
	}
	if err == nil && p.N > 0 {
		err = p.Take(buf)
	}
	s.pipes.put(p)
	return nil, n, err
}

// pipeResult is an answer to a read from a pipe.
type pipeResult struct {
	of    *pipes
	pipe  *pipe
	taken bool // the library may have emptied the pipe
}

var _ fuse.ReadResult = (*pipeResult)(nil)

// Stateful returns the pipe, for the FUSE library.
func (r *pipeResult) Stateful() (fd uintptr, n int) {
	r.taken = true
	return uintptr(r.pipe.R), r.pipe.N
}

// Size implements fuse.ReadResult.
func (r *pipeResult) Size() int { return r.pipe.N }

// Bytes implements fuse.ReadResult. It is called if the kernel did not take the pipe. Bytes that were already taken are
// lost.
func (r *pipeResult) Bytes(buf []byte) ([]byte, fuse.Status) {
	n := r.pipe.N
	if len(buf) < n || r.pipe.Take(buf) != nil {
		return nil, fuse.EIO
	}
	return buf[:n], fuse.OK
}

// Done implements fuse.ReadResult.
func (r *pipeResult) Done() {
	if r.taken {
		r.pipe.N = 0 // else the bytes are still in it
	}
	r.of.put(r.pipe)
}
