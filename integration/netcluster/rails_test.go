package netcluster

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/deploy/local"
)

// sockets counts the TCP sockets in a daemon's namespace, by local address: listening ones, and connections.
func sockets(t *testing.T, pid int) (listening, connected map[string]int) {
	t.Helper()
	listening, connected = make(map[string]int), make(map[string]int)
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(string(b), "\n")[1:] {
			f := strings.Fields(line)
			if len(f) < 4 {
				continue
			}
			host, _, _ := strings.Cut(f[1], ":")
			switch f[3] {
			case "0A":
				listening[host]++
			case "01":
				connected[host]++
			}
		}
	}
	return listening, connected
}

// TestRails: if two of three networks are chosen (loopback is the third), daemons listen only there, and both carry
// connections; if one is chosen, the other is unused.
func TestRails(t *testing.T) {
	NeedRoot(t)
	nw, err := NewNetwork(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nw.Close)
	if err := nw.SecondRail(); err != nil {
		t.Fatal(err)
	}
	// The format of /proc/net/tcp.
	hex := func(rail, i int) string { return fmt.Sprintf("%02X00%02X0A", 10+i, 91+rail) }
	for _, c := range []struct {
		networks []string
		rails    []int
	}{
		{[]string{"eth0", "10.92.0.0/24"}, []int{0, 1}},
		{[]string{"10.92.0.0/24"}, []int{1}}, // the nodes' names resolve to the other network
	} {
		t.Run(strings.Join(c.networks, "+"), func(t *testing.T) {
			j := startOn(t, nw, local.Config{Nodes: 3, Network: c.networks})
			want := randomBytes(3 << 20)
			write(t, j.Scratch(0, "file"), want)
			for i, n := range j.Nodes {
				wantFile(t, j.Scratch(i, "file"), want)
				eventually(t, fmt.Sprintf("node %d has connections on its rails %v, and on no other network", i, c.rails), func() bool {
					listening, connected := sockets(t, n.PID)
					for _, r := range c.rails {
						if listening[hex(r, i)] != 1 {
							t.Fatalf("node %d listens on %v, want its rails %v", i, listening, c.rails)
						}
						if connected[hex(r, i)] == 0 {
							return false
						}
					}
					if len(listening) != len(c.rails) {
						t.Fatalf("node %d listens on %v, want only its rails %v", i, listening, c.rails)
					}
					return len(connected) == len(c.rails)
				})
			}
		})
	}
}
