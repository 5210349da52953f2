package local

import (
	"archive/tar"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// covered waits until both nodes have mounted the cover of a dataset, or a view on it.
func (c *camp) covered(name string) {
	c.t.Helper()
	for _, n := range []string{"0", "1"} {
		eventually(c.t, name+" is covered", func() bool {
			at, err := mounts.At(c.node(n, "data", name))
			if err != nil {
				c.t.Fatal(err)
			}
			return len(at) > 0
		})
	}
}

// wantTree repeatedly reads all files of a dataset on both nodes; each file's content is its name.
func (c *camp) wantTree(name string, files, size int) {
	c.t.Helper()
	for _, n := range []string{"1", "0", "1"} {
		for i := range files {
			f := fmt.Sprintf("%03d", i)
			wantFile(c.t, c.node(n, "data", name, f), strings.Repeat(f, size/3))
		}
	}
}

// smallTree makes a source of small files.
func (c *camp) smallTree(name string, files, size int) string {
	c.t.Helper()
	src := mkdir(c.t, c.path(name))
	for i := range files {
		f := fmt.Sprintf("%03d", i)
		write(c.t, filepath.Join(src, f), []byte(strings.Repeat(f, size/3)))
	}
	return src
}

// TestCoverOverflow: overflow files of a covered dataset are read from the source.
func TestCoverOverflow(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const files, size = 100, 99_999
	c := pitch(t, "2", "--capacity", "3M")
	c.stageIn(c.smallTree("overflowed", files, size))
	c.covered("overflowed")
	used := int64(0)
	for _, n := range []string{"0", "1"} {
		used += c.status(n).Space.Used
	}
	if used == 0 || used > 6<<20 {
		t.Errorf("%d bytes are on the nodes, want some, and at most 6 MiB", used)
	}
	c.wantTree("overflowed", files, size)
}

// TestCoverFilled: the files of a covered dataset can be read before they are staged.
func TestCoverFilled(t *testing.T) {
	t.Parallel()
	needRoot(t)
	const files, size = 60, 99_999
	c := pitch(t, "2", "--rate", "100K")
	c.ok("stage-in", c.smallTree("filled", files, size), "--dir", c.dir, "--background")
	c.covered("filled")
	if s := c.dataset("filled"); s.Phase == cluster.Sealed {
		t.Fatalf("all of it is there already: %+v", s)
	}
	c.wantTree("filled", files, size)
	c.ok("wait", "--dir", c.dir)
	c.wantTree("filled", files, size)
}

// TestCoverSkipped: skipped files of a covered dataset do not exist, and the others can be read.
func TestCoverSkipped(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := pitch(t, "2")
	write(t, c.path("bad.tar"), archive(t, member("dev/null", tar.TypeChar), member("fine", tar.TypeReg)))
	if r := c.run("stage-in", c.path("bad.tar")+",on-error=skip", "--dir", c.dir); r.status != 3 {
		t.Fatalf("status %d, want 3:\n%s", r.status, r.err)
	}
	c.covered("bad")
	for _, n := range []string{"0", "1"} {
		if _, err := os.Stat(c.node(n, "data", "bad", "dev", "null")); !os.IsNotExist(err) {
			t.Errorf("what was left out: %v", err)
		}
		for _, f := range []string{"fine", "good/file"} {
			wantFile(t, c.node(n, "data", "bad", f), strings.Repeat("data", 25_000))
		}
	}
}
