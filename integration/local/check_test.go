package local

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/metadata"
)

// TestCheck: scratch is consistent, also while it is in use, until a node has data of a file that does not exist.
func TestCheck(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	for i, n := range []string{"0", "1", "2"} {
		d := mkdir(t, c.node(n, "scratch", "d"+n, "sub"))
		write(t, filepath.Join(d, "f"), bytes.Repeat([]byte("scratch "), 100_000*(i+1)))
		if err := os.Link(filepath.Join(d, "f"), c.node(n, "scratch", "link"+n)); err != nil {
			t.Fatal(err)
		}
	}
	r := c.check()
	if r.Directories != 7 || r.Files != 3 || r.Names != 12 || r.Orphans != 0 || r.Objects == 0 {
		t.Errorf("check = %+v, want 7 directories, 3 files and 12 names", r)
	}
	busy := c.start("check", "--dir", c.dir, "--node", "1")
	for range 300 {
		for _, n := range []string{"0", "1", "2"} {
			f, g := c.node(n, "scratch", "d0", "sub", "x"+n), c.node(n, "scratch", "d1", "sub", "y"+n)
			write(t, f, []byte(n))
			if err := os.Rename(f, g); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(g); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := c.finish(busy); r.status != 0 || !strings.HasSuffix(r.out, ": 0 problems\n") {
		t.Errorf("check of a busy tree: status %d: %s%s", r.status, r.out, r.err)
	}
	gone := metadata.LiveIno(1, 1<<38)
	part := filepath.Join(c.dir, ".bivouac/node2/store/objects/00")
	write(t, filepath.Join(mkdir(t, part), fmt.Sprintf("%016x", uint64(gone))), []byte("leaked"))
	out := c.run("check", "--dir", c.dir)
	if want := "node2 has an object of inode " + gone.String() + ", which does not exist\n"; out.status != 1 || !strings.HasPrefix(out.out, want) ||
		!strings.Contains(out.err, "scratch has 1 problems") {
		t.Errorf("check: status %d: %s%s\nwant status 1 and %q", out.status, out.out, out.err, want)
	}
}

// check checks scratch, which must be consistent.
func (c *camp) check() home.CheckResult {
	c.t.Helper()
	var r home.CheckResult
	if err := json.Unmarshal([]byte(c.ok("check", "--json", "--dir", c.dir)), &r); err != nil {
		c.t.Fatal(err)
	}
	return r
}
