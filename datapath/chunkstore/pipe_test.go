package chunkstore

import (
	"bytes"
	"context"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
)

// TestReadPipe: data that fits is returned in the pipe as a whole; other data is returned in memory.
func TestReadPipe(t *testing.T) {
	const size = 1 << 20
	s := open(t, Config{})
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i*7 + i>>12)
	}
	if err := s.WriteAt(context.Background(), ino, want, 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		pipe    int
		off     int64
		len     int
		spoilt  bool
		n       int
		inPipe  bool
		another bool // reads another object
	}{
		{name: "whole", pipe: 1 << 20, len: 512 << 10, n: 512 << 10, inPipe: true},
		{name: "from within a page", pipe: 1 << 20, off: 4097, len: 512 << 10, n: 512 << 10, inPipe: true},
		{name: "behind the end", pipe: 1 << 20, off: size - 1000, len: 512 << 10, n: 1000},
		{name: "a pipe without room", pipe: 64 << 10, len: 512 << 10, n: 512 << 10},
		{name: "a pipe that is just full", pipe: 64 << 10, len: 64 << 10, n: 64 << 10},
		{name: "a spoilt pipe", pipe: 1 << 20, len: 512 << 10, n: 512 << 10, spoilt: true},
		{name: "no object", pipe: 1 << 20, len: 512 << 10, another: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var fds [2]int
			if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) }()
			if _, err := unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, c.pipe); err != nil {
				t.Fatal(err)
			}
			to := datapath.Pipe{R: fds[0], W: fds[1], Spoilt: c.spoilt}
			i := ino
			if c.another {
				i++
			}
			p := make([]byte, c.len)
			n, err := s.ReadPipe(context.Background(), i, &to, p, c.off)
			if err != nil || n != c.n || to.N != 0 && to.N != n || (to.N > 0) != c.inPipe || to.Spoilt != c.spoilt {
				t.Fatalf("ReadPipe = %d, %v with %+v, want %d, in the pipe: %v", n, err, to, c.n, c.inPipe)
			}
			if to.N > 0 {
				if err := to.Take(p); err != nil {
					t.Fatal(err)
				}
			}
			if n > 0 && !bytes.Equal(p[:n], want[c.off:][:n]) {
				t.Error("other bytes")
			}
		})
	}
}
