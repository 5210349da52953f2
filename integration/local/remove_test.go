package local

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestRemove: a removed dataset disappears from every node, with its space and its mounts; its name can be reused,
// also by --replace.
func TestRemove(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2")
	mkdir(t, c.path("b"))
	write(t, filepath.Join(mkdir(t, c.path("a", "one")), "f"), smallFile(1))
	write(t, c.path("b", "two"), smallFile(2))
	empty := c.status("0").Space.Used
	c.stageIn(c.path("a") + ":set")
	wantFile(t, c.node("1", "data", "set", "one", "f"), string(smallFile(1)))
	c.fails([]string{`a dataset named "set" is there already`}, "stage-in", c.path("b")+":set", "--dir", c.dir)
	c.fails([]string{"set is not being staged", "bivouac remove set"}, "cancel", "set", "--dir", c.dir)
	c.ok("stage-in", c.path("b")+":set", "--replace", "--dir", c.dir)
	for _, n := range []string{"0", "1"} {
		eventually(t, "the new dataset is in the place of the old one", func() bool {
			return slices.Equal(names(t, c.node(n, "data", "set")), []string{"two"})
		})
		wantFile(t, c.node(n, "data", "set", "two"), string(smallFile(2)))
	}
	held, err := os.Open(c.node("1", "data", "set"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close() // read only
	c.ok("remove", "set", "--dir", c.dir, "--node", "1")
	for _, n := range []string{"0", "1"} {
		eventually(t, "the dataset is gone with its space", func() bool {
			_, err := os.Stat(c.node(n, "data", "set"))
			return errors.Is(err, syscall.ENOENT) && len(names(t, c.node(n, "data"))) == 0 && c.status(n).Space.Used <= empty
		})
	}
	if s := c.ok("status", "--dir", c.dir); strings.Contains(s, "set ") {
		t.Errorf("a removed dataset is in the status:\n%s", s)
	}
	c.fails([]string{`no dataset is named "set": the job has no dataset`}, "remove", "set", "--dir", c.dir)
	c.fails([]string{`no dataset is named "NOSUCH"`}, "wait", "NOSUCH", "--dir", c.dir)
	c.ok("wait", "--dir", c.dir)
}

// TestCancel: a cancelled stage-in ends, its objects are removed, and a command that waits for it prints why; a
// dataset can be removed during its stage-in, too.
func TestCancel(t *testing.T) {
	t.Parallel()
	c := pitch(t, "2", "--rate", "100K")
	write(t, filepath.Join(mkdir(t, c.path("src")), "f"), make([]byte, 4<<20))
	for _, how := range [][]string{{"cancel"}, {"remove"}, {"cancel", "--background"}} {
		end := how[0]
		r := c.start(append([]string{"stage-in", c.path("src") + ":set", "--dir", c.dir}, how[1:]...)...)
		eventually(t, "the dataset is being staged", func() bool {
			all := c.status("1").Datasets
			return len(all) > 0 && !all[len(all)-1].Phase.Ended() && all[len(all)-1].Phase != cluster.Sealed
		})
		c.ok(end, "set", "--dir", c.dir, "--node", "1")
		if how[len(how)-1] == "--background" {
			c.finish(r)
			r = c.start("wait", "set", "--dir", c.dir)
		}
		c.failed(c.finish(r), "set: ", "by bivouac "+end)
		c.ok("wait", "--dir", c.dir) // for all others
		for _, n := range []string{"0", "1"} {
			eventually(t, "the dataset leaves nothing", func() bool {
				s := c.status(n)
				return s.Space.Objects == 0 && s.Shares == 0 && len(names(t, c.node(n, "data"))) == 0
			})
		}
	}
	if s := c.ok("status", "--dir", c.dir); strings.Contains(s, "set ") {
		t.Errorf("a stage-in that was cancelled is in the status:\n%s", s)
	}
}
