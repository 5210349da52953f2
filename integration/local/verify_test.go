package local

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/dataset"
)

// TestVerify: staged data verifies until a bit flips; then it is refetched.
func TestVerify(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	src := c.path("src")
	makeTree(t, src)
	write(t, filepath.Join(src, "striped"), bytes.Repeat([]byte("0123456789abcdef"), 5<<20))
	c.stageIn("src")
	r := c.run("verify", "--dir", c.dir)
	if r.status != 0 || !strings.Contains(r.err, "0 damaged") || strings.Contains(r.err, "no checksum") {
		t.Fatalf("verify: status %d:\n%s", r.status, r.err)
	}
	sums := c.ok("verify", "src", "--sha256", "--dir", c.dir, "--node", "1")
	check := exec.Command("sha256sum", "-c", "--quiet", "--strict")
	check.Dir, check.Stdin = src, strings.NewReader(sums)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
	if want := len(below(t, src)); strings.Count(sums, "\n") != want {
		t.Errorf("%d checksums, want %d", strings.Count(sums, "\n"), want)
	}
	node := c.flip("src/big", 2_000_000)
	r = c.run("verify", "--keep", "--dir", c.dir)
	if r.status != 1 || !strings.Contains(r.err, `"big" on `+node) || !strings.Contains(r.err, "1 damaged") {
		t.Errorf("a bit of big flipped on %s; status %d:\n%s", node, r.status, r.err)
	}
	var found map[string]dataset.VerifyResult
	if err := json.Unmarshal([]byte(c.ok("verify", "--json", "--dir", c.dir)), &found); err != nil {
		t.Fatal(err)
	}
	if f := found["src"]; f.Bad != 0 || f.Repaired != 1 || len(f.BadFiles) != 1 || f.BadFiles[0].Path != "big" {
		t.Errorf("fetched again: %+v", f)
	}
	if r := c.run("verify", "--dir", c.dir); r.status != 0 || !strings.Contains(r.err, " 0 damaged\n") {
		t.Errorf("afterwards: status %d:\n%s", r.status, r.err)
	}
	c.fails([]string{"no dataset named", "status"}, "verify", "nothing", "--dir", c.dir)
	c.fails([]string{"not below a mount", "$BIVOUAC"}, "locate", src)
}

// flip flips a bit of a file's object, and returns the node that holds it.
func (c *camp) flip(name string, at int64) (node string) {
	c.t.Helper()
	out := c.ok("locate", c.node("0", "data", name))
	node, _, _ = strings.Cut(out, "\t")
	want, err := os.ReadFile(c.node("0", "data", name))
	if err != nil {
		c.t.Fatal(err)
	}
	objects, err := filepath.Glob(filepath.Join(c.dir, ".bivouac", node, "store/objects/*/*"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, o := range objects {
		b, err := os.ReadFile(o)
		if err != nil {
			c.t.Fatal(err)
		}
		if !bytes.Equal(b, want) {
			continue
		}
		f, err := os.OpenFile(o, os.O_WRONLY, 0)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{b[at] ^ 4}, at); err != nil {
			c.t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			c.t.Fatal(err)
		}
		return node
	}
	c.t.Fatalf("no object on %s has what %s has", node, name)
	return ""
}
