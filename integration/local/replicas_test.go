package local

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestReplicas: with replicas=all the kernel of every node reads every file through its view without the daemon;
// locate and status show the replicas; after the loss of a node every file can be read, although the source was
// removed.
func TestReplicas(t *testing.T) {
	t.Parallel()
	needRoot(t)
	needViews(t)
	c := pitch(t, "3")
	src := mkdir(t, filepath.Join(c.home, "small"))
	for i := range 40 {
		write(t, filepath.Join(src, fmt.Sprintf("%02d", i)), smallFile(i))
	}
	c.fails([]string{"replicas=some", "all, spare or none"}, "stage-in", src+",replicas=some", "--dir", c.dir)
	c.ok("stage-in", src+",replicas=all", "--dir", c.dir)
	eventually(t, "the kernel of each node finds all files", func() bool { return c.linked() == 3*40 })
	c.awaitViews("small", "3")
	if err := os.RemoveAll(src); err != nil {
		t.Fatal(err)
	}
	all := func(nodes ...string) {
		t.Helper()
		for i := range 40 {
			for _, node := range nodes {
				wantFile(t, c.node(node, "data", "small", fmt.Sprintf("%02d", i)), string(smallFile(i)))
			}
		}
	}
	all("0", "1", "2")
	for _, node := range []string{"0", "1", "2"} {
		eventually(t, "node "+node+" has heard of all replicas", func() bool {
			copies := c.status(node).Datasets[0].Copies
			return copies != nil && copies.Files == 80
		})
		if s := c.status(node); s.Traffic.ReadRemote > 0 {
			t.Errorf("node %s: %+v", node, s.Traffic)
		}
	}
	if out := c.ok("status", "--dir", c.dir); !strings.Contains(out, "small: replicas=all: 80 of 80 files, ") {
		t.Errorf("status:\n%s", out)
	}
	if out := c.ok("status", "--sources", "--dir", c.dir); !strings.Contains(out, "no dataset through its mount") && !strings.Contains(out, "PLACE") {
		t.Errorf("status --sources:\n%s", out)
	}
	if r := c.run("verify", "--dir", c.dir); r.status != 0 || !strings.Contains(r.err, "80 replicas") {
		t.Errorf("verify: status %d:\n%s", r.status, r.err)
	}
	if err := syscall.Kill(c.state().Nodes[2].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	all("0", "1")
	c.struck()
}
