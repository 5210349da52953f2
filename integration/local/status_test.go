package local

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
)

// bigTar returns a tar of small files that does not fit on two nodes with a megabyte each.
func bigTar(t *testing.T) []byte {
	t.Helper()
	var members []*tar.Header
	for i := range 40 {
		members = append(members, member(fmt.Sprint("f", i), tar.TypeReg))
	}
	return archive(t, members...)
}

// TestStatus: text and JSON show the same status, from every node and from the mount.
func TestStatus(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	write(t, c.path("set.tar"), archive(t))
	c.stageIn(c.path("set.tar"))
	for i, node := range []string{"0", "1", "2"} {
		s := c.status(node)
		if !s.Ready || len(s.Nodes) != 3 || int(s.Self) != i || s.Host != "node"+node || s.Mount != c.node(node) {
			t.Errorf("status of node%s: %+v", node, s)
		}
		var m daemon.Status
		b, err := os.ReadFile(c.node(node, ".bivouac", "status"))
		if err == nil {
			err = json.Unmarshal(b, &m)
		}
		if err != nil || m.Host != s.Host || len(m.Datasets) != 1 || m.Datasets[0].Digest != s.Datasets[0].Digest {
			t.Errorf(".bivouac/status on node%s: %v, %+v", node, err, m)
		}
		out := c.ok("status", "--dir", c.dir, "--node", node)
		for _, want := range []string{"ready", "mounted at " + c.node(node), "node2", "leader", "set      ready", c.path("set.tar")} {
			if !strings.Contains(out, want) {
				t.Errorf("status of node%s has no %q:\n%s", node, want, out)
			}
		}
	}
	out := c.ok("report", "--dir", c.dir)
	for _, want := range []string{"3 nodes", "allocation to all nodes", "dataset set", "files, directories       1, ", "source bytes read / source bytes = 1.00"} {
		if !strings.Contains(out, want) {
			t.Errorf("report has no %q:\n%s", want, out)
		}
	}
	var r daemon.Status
	if err := json.Unmarshal([]byte(c.ok("report", "--json", "--dir", c.dir)), &r); err != nil || len(r.Datasets) != 1 {
		t.Errorf("report --json: %v, %+v", err, r)
	}
	c.fails([]string{"--node 3", "has 3 nodes"}, "status", "--dir", c.dir, "--node", "3")
}

// TestWhichJob: every command that needs a job says how to name one.
func TestWhichJob(t *testing.T) {
	t.Parallel()
	c := newCamp(t)
	write(t, c.path("set.tar"), archive(t))
	for _, args := range [][]string{{"status"}, {"report"}, {"wait"}, {"stage-in", c.path("set.tar")}, {"stage-out", "a:" + c.path("out")}} {
		c.fails([]string{"--dir", "--job"}, args...)
		c.fails([]string{"nothing is up in " + c.dir, "bivouac up"}, append(args, "--dir", c.dir)...)
		c.fails([]string{"4711"}, append(args, "--job", "4711")...)
	}
	c.fails([]string{"unknown command"}, "pitch")
	c.fails([]string{"SRC[:NAME]"}, "stage-in", "--dir", c.dir)
}
