package daemon

import (
	"net"
	"strings"
	"testing"
)

// TestPortInUse: a port that is taken costs the next candidate; where all are
// taken the error says what to do.
func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, busy, _ := net.SplitHostPort(taken.Addr().String())
	l, err := listen([]string{"here:" + busy, "here:0"})
	if err != nil {
		t.Fatalf("listen with one port in use: %v", err)
	}
	_ = l.Close()
	if _, err := listen([]string{"here:" + busy}); err == nil || !strings.Contains(err.Error(), "ports=") {
		t.Errorf("listen with all ports in use: %v, want what to do", err)
	}
	if _, err := listen([]string{"nonsense"}); err == nil {
		t.Error("an address without a port was taken")
	}
}
