package datapath

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// Pipe is a pipe of the kernel's that takes what is read, so that it does not go
// through the memory of this process. It is empty when a read begins.
type Pipe struct {
	R, W int // descriptors; both ends do not block
	N    int // bytes in it that count
	// Spoilt is set by a read that failed and may have left something in it:
	// it takes nothing more.
	Spoilt bool
}

// Spoil gives up what is in the pipe, and the pipe; t may be nil.
func (t *Pipe) Spoil() {
	if t != nil {
		t.N, t.Spoilt = 0, true
	}
}

// Take reads what counts in the pipe into p, which has room for it.
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

// Full reports whether there is no place left in t, which may hold few bytes: a
// piece of any length takes one.
func (t *Pipe) Full() bool {
	fds := []unix.PollFd{{Fd: int32(t.W), Events: unix.POLLOUT}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0
}

// Piper is an optional power of a Reader.
type Piper interface {
	// ReadPipe is ReadAt, but that what it has read may be in the pipe to, all
	// of it, rather than in p: to.N says.
	ReadPipe(ctx context.Context, ino metadata.Ino, to *Pipe, p []byte, off int64) (int, error)
}
