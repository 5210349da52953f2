package daemon

import (
	"io"
	"net"
	"testing"
)

func TestHeartbeat(t *testing.T) {
	a, b := net.Pipe()
	keeper, d := NewHeartbeat(a), NewHeartbeat(b)
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
		t.Errorf("after the close: %v, want EOF", err)
	}
}
