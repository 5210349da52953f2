package daemon

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/datapath/rails"
)

// TestPortInUse: if a port is taken, the next candidate is used; if all are taken, the error says what to do.
func TestPortInUse(t *testing.T) {
	taken, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, busy, _ := net.SplitHostPort(taken.Addr().String())
	ls, err := listen([]string{"here:" + busy, "here:0"}, nil)
	if err != nil {
		t.Fatalf("listen with one port in use: %v", err)
	}
	closeAll(ls)
	if _, err := listen([]string{"here:" + busy}, nil); err == nil || !strings.Contains(err.Error(), "ports=") {
		t.Errorf("listen with all ports in use: %v, want what to do", err)
	}
	if _, err := listen([]string{"nonsense"}, nil); err == nil {
		t.Error("an address without a port was taken")
	}
}

// TestRails: a daemon listens on its rails only, and connections to a node start on one rail after another.
func TestRails(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.1")
	on := []rails.Rail{{Prefix: netip.MustParsePrefix("127.0.0.0/24"), Own: own}, {Prefix: netip.MustParsePrefix("127.0.1.0/24"), Own: netip.MustParseAddr("127.0.1.1")}}
	taken, err := net.Listen("tcp", "127.0.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, busy, _ := net.SplitHostPort(taken.Addr().String())
	ls, err := listen([]string{"here:" + busy, "here:0"}, on)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(ls)
	for i, l := range ls {
		if host, _, _ := net.SplitHostPort(l.Addr().String()); host != on[i].Own.String() {
			t.Errorf("listens on %v, want %v", l.Addr(), on[i].Own)
		}
	}
	n, err := openRails(nil)
	if err != nil {
		t.Fatal(err)
	}
	addrs := []string{"10.0.0.7:1", "10.0.0.7:2"}
	if got := n.spread(3, addrs); !slices.Equal(got, addrs) {
		t.Errorf("without rails: %q", got)
	}
	n.rails = on
	one, two := []string{"127.0.0.7:1", "127.0.0.7:2"}, []string{"127.0.1.7:1", "127.0.1.7:2"}
	for i, want := range [][]string{slices.Concat(one, two), slices.Concat(two, one), slices.Concat(one, two)} {
		if got := n.spread(3, addrs); !slices.Equal(got, want) {
			t.Errorf("connection %d: %q, want %q", i, got, want)
		}
	}
	if _, err := openRails([]string{"nowhere0"}); err == nil || !strings.Contains(err.Error(), "network nowhere0") {
		t.Errorf("an interface that is not there: %v", err)
	}
}
