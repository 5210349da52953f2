package datapath

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// Pipe is a kernel pipe that receives data without a copy through this process's memory. It is
// empty when a read starts.
type Pipe struct {
	R, W int // descriptors; both are non-blocking
	N    int // valid bytes in it
	// Spoilt is set by a failed read that may have left bytes in the pipe: the pipe must not be used any more.
	Spoilt bool
}

// Spoil marks the pipe and its content as unusable; t may be nil.
func (t *Pipe) Spoil() {
	if t != nil {
		t.N, t.Spoilt = 0, true
	}
}

// Take reads the pipe's valid bytes into p, which is large enough.
func (t *Pipe) Take(p []byte) error {
	p, t.N = p[:t.N], 0
	t.Spoilt = t.Spoilt || len(p) > 0
	for len(p) > 0 {
		n, err := unix.Read(t.R, p)
		switch {
		case err == unix.EINTR:
			continue
		case err == nil && n == 0:
			err = unix.EPIPE
		}
		if err != nil {
			return os.NewSyscallError("read from a pipe", err)
		}
		p = p[n:]
	}
	t.Spoilt = false
	return nil
}

// Full reports whether the pipe has no free slot. It may hold few bytes: each segment takes a slot,
// whatever its length.
func (t *Pipe) Full() bool {
	fds := []unix.PollFd{{Fd: int32(t.W), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0
}

// Piper is an optional interface of a Reader.
type Piper interface {
	// ReadPipe is ReadAt, except that it may put all of the data into the pipe to instead of p: then to.N is set.
	ReadPipe(ctx context.Context, ino metadata.Ino, to *Pipe, p []byte, off int64) (int, error)
}
