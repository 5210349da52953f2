package main

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
)

// TestHeartbeatReset: a detached daemon outlives its heartbeat connection, even if that is closed with an unread
// message in it; any other daemon is notified.
func TestHeartbeatReset(t *testing.T) {
	for _, detached := range []bool{true, false} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		near, far := os.NewFile(uintptr(fds[0]), "heartbeat"), os.NewFile(uintptr(fds[1]), "heartbeat")
		l := daemon.NewHeartbeat(far)
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
			listenHeartbeat(l, detached, orders, func() { cut = true })
		}()
		select {
		case <-over:
		case <-time.After(time.Minute):
			t.Fatal("listening on a closed heartbeat connection")
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
