package rpc

import (
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
)

const (
	// pipeFrom is the number of bytes from which a pipe is worth its system calls.
	pipeFrom = 128 << 10
	// restPipes is how many replies skip the pipe after one that did not fit: on a network that delivers small segments
	// none fits.
	restPipes = 64
)

// toPipe moves n bytes of data into the pipe of a call. If the pipe cannot hold as many segments as the network
// delivered, it copies the data instead.
func (c *clientConn) toPipe(call *Call, n int) error {
	to := call.Pipe
	to.Spoilt = true // until all has arrived
	done, full, err := c.splice(to, n)
	if err != nil {
		return broken(err)
	}
	if full || to.Full() { // the reader of the pipe needs one free slot
		c.pool.p.stats.pipesFull.Add(1)
		c.skipPipe = restPipes
		to.N, to.Spoilt = done, false
		if err := to.Take(call.Into); err != nil {
			return err
		}
		return c.r.full(call.Into[done:n])
	}
	c.pool.p.stats.piped.Add(int64(n))
	to.N, to.Spoilt = n, false
	return nil
}

// splice moves n bytes, the first of them from the read buffer. full means that the pipe was full after done bytes.
func (c *clientConn) splice(to *datapath.Pipe, n int) (done int, full bool, err error) {
	b, _ := c.r.br.Peek(min(c.r.br.Buffered(), n))
	if len(b) > 0 {
		if done, err = unix.Write(to.W, b); err != nil {
			return 0, false, os.NewSyscallError("write to a pipe", err)
		}
		_, _ = c.r.br.Discard(done) // it was peeked
		if done < len(b) {
			return done, true, nil
		}
	}
	move := func(fd uintptr) bool {
		for done < n {
			k, serr := unix.Splice(int(fd), nil, to.W, nil, n-done, unix.SPLICE_F_NONBLOCK|unix.SPLICE_F_MOVE)
			switch {
			case serr == unix.EINTR:
			case serr == unix.EAGAIN:
				full = to.Full()
				return full
			case serr != nil:
				err = os.NewSyscallError("splice", serr)
				return true
			case k == 0:
				err = io.ErrUnexpectedEOF
				return true
			default:
				done += int(k)
			}
		}
		return true
	}
	rerr := c.w.raw.Read(move)
	for rerr != nil && err == nil && c.r.resume(rerr) {
		rerr = c.w.raw.Read(move)
	}
	if err == nil {
		err = rerr
	}
	return done, full, err
}

// mayPipe reports whether n bytes for a call go into its pipe.
func (c *clientConn) mayPipe(call *Call, n int) bool {
	if call.Pipe == nil || call.Pipe.Spoilt || n < pipeFrom || c.w.raw == nil {
		return false
	}
	if c.skipPipe > 0 {
		c.skipPipe--
		return false
	}
	return true
}
