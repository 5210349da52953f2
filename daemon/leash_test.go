package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
)

func TestLeash(t *testing.T) {
	a, b := net.Pipe()
	keeper, d := NewLeash(a), NewLeash(b)
	sent := make(chan error, 1)
	go func() { sent <- keeper.Send(Start{Key: "00", Fuse: true}) }()
	var s Start
	if err := d.Receive(&s); err != nil || !s.Fuse || s.Key != "00" {
		t.Fatalf("Receive = %+v, %v", s, err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = a.Write([]byte("nonsense\n")); sent <- keeper.Close() }()
	if err := d.Receive(&s); err == nil {
		t.Error("nonsense was received without an error")
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if err := d.Receive(&s); err != io.EOF {
		t.Errorf("a cut leash gives %v, want EOF", err)
	}
}

// TestErrnoText: a user reads what is wrong, not that the message was bad.
func TestErrnoText(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{syscall.EBADMSG, "bad message"},
		{fmt.Errorf("read: %w", syscall.EIO), "read: input/output error"},
		{fmt.Errorf("a.tar: it is truncated: copy it again: %w", syscall.EBADMSG), "a.tar: it is truncated: copy it again"},
		{fmt.Errorf("f: %w", fmt.Errorf("was changed: %w", syscall.ESTALE)), "f: was changed"},
		{fmt.Errorf("%w; the last member is x", syscall.EBADMSG), "bad message; the last member is x"},
		{errors.New("plain"), "plain"},
	} {
		if got := errnoText(c.err); got != c.want {
			t.Errorf("errnoText(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}
