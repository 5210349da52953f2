package main

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
)

// TestLeashReset: a detached daemon outlives its leash, also if that is closed
// with a note in it that nobody has read; any other is told.
func TestLeashReset(t *testing.T) {
	for _, detached := range []bool{true, false} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		near, far := os.NewFile(uintptr(fds[0]), "leash"), os.NewFile(uintptr(fds[1]), "leash")
		l := daemon.NewLeash(far)
		if err := l.Send(daemon.Note{Alive: true}); err != nil {
			t.Fatal(err)
		}
		if err := near.Close(); err != nil {
			t.Fatal(err)
		}
		orders, over := make(chan daemon.Order), make(chan struct{})
		cut := false
		go func() {
			defer close(over)
			listenLeash(l, detached, orders, func() { cut = true })
		}()
		select {
		case <-over:
		case <-time.After(time.Minute):
			t.Fatal("a leash that is cut is listened to")
		}
		closed := false
		select {
		case _, ok := <-orders:
			closed = !ok
		default:
		}
		if closed == detached || cut == detached {
			t.Errorf("detached %v: orders closed %v, start given up %v", detached, closed, cut)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
