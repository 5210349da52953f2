package mount

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sirupsen/logrus"
)

func TestErrnoOf(t *testing.T) {
	tests := []struct {
		err  error
		want syscall.Errno
	}{
		{nil, 0},
		{syscall.ENOENT, syscall.ENOENT},
		{fmt.Errorf("inode 7: %w", syscall.ENOSPC), syscall.ENOSPC},
		{errors.New("no errno"), syscall.EIO},
		{io.EOF, syscall.EIO},
		{fmt.Errorf("call: %w", context.Canceled), syscall.EINTR},
		{context.DeadlineExceeded, syscall.ETIMEDOUT},
		{fmt.Errorf("call: %w", syscall.ETIMEDOUT), syscall.ETIMEDOUT},
		{syscall.ENOSYS, syscall.EIO},
		{syscall.ENOTSUP, syscall.EIO},
		{fmt.Errorf("node n2 is down: %w", syscall.EHOSTDOWN), syscall.EIO},
		{syscall.ECONNRESET, syscall.EIO},
		{syscall.Errno(512), syscall.EIO},
		{syscall.Errno(0), syscall.EIO},
		{stale(fmt.Errorf("inode: %w", syscall.ENOENT)), syscall.ESTALE},
		{stale(syscall.EROFS), syscall.EROFS},
		{stale(nil), 0},
	}
	for _, tt := range tests {
		if got := errnoOf(tt.err); got != tt.want {
			t.Errorf("errnoOf(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// TestAgain: no read or write returns EAGAIN: the program would wait for ever for the file to become ready.
func TestAgain(t *testing.T) {
	s := &fsys{log: logrus.NewEntry(&logrus.Logger{Out: io.Discard})}
	for o, want := range map[op]syscall.Errno{opWrite: syscall.EIO, opRead: syscall.EIO, opFsync: syscall.EIO, opOpen: syscall.EIO, opSetlk: syscall.EAGAIN} {
		if got := s.fail(o, 7, fmt.Errorf("the home moves: %w", syscall.EAGAIN)); got != fuse.Status(want) {
			t.Errorf("%v: %v, want %v", o, got, want)
		}
	}
}
