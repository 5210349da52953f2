package local

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// said returns how often the logs of all nodes contain a text.
func (c *camp) said(text string) (n int) {
	c.t.Helper()
	for _, node := range c.state().Nodes {
		b, err := os.ReadFile(node.Log)
		if err != nil {
			c.t.Fatal(err)
		}
		n += strings.Count(string(b), text)
	}
	return n
}

// TestIndex: the first stage-in of a tar saves its index where the user asks, the next one needs no scan, and an
// invalid index only costs a line in the log.
func TestIndex(t *testing.T) {
	t.Parallel()
	c := pitch(t, "3")
	src := c.path("src")
	makeTree(t, src)
	want := describe(t, src, true)
	file := c.path("set.tar")
	if out, err := exec.Command("tar", "--format=pax", "-C", src, "-cf", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	stage := func(name, options, index string, used bool) {
		t.Helper()
		was := c.said("archives not scanned: their members")
		c.stageIn(file + ":" + name + ",order=source" + options)
		if now := c.said("archives not scanned: their members"); now-was == 1 != used {
			t.Errorf("%s: %d more lines about the use of an index, want it used: %v", name, now-was, used)
		}
		for _, node := range []string{"0", "2"} {
			wantSame(t, name+" on node"+node, describe(t, c.node(node, "data", name), true), want)
		}
		eventually(t, "the index of "+name, func() bool {
			found, _ := filepath.Glob(index) // the pattern is valid
			return len(found) == 1
		})
	}
	cached := c.path("cache/bivouac/set.tar-*.index")
	stage("first", "", cached, false)
	stage("second", "", cached, true)
	stage("off", ",index=off", cached, false)
	stage("beside", ",index=beside", file+".bivouac-index", false)
	stage("beside2", ",index=beside", file+".bivouac-index", true)
	stage("path", ",index=./mine", c.path("mine"), false)
	stage("path2", ",index=./mine", c.path("mine"), true)
	if err := os.WriteFile(c.path("mine"), bytes.Repeat([]byte("BIVIDX"), 100), 0o600); err != nil {
		t.Fatal(err)
	}
	stage("wrong", ",index=./mine", c.path("mine"), false)
	write(t, c.path("a file"), nil)
	stage("unwritable", ",index=./a file/mine", cached, false)
	if n := c.said("index not saved"); n != 1 {
		t.Errorf("%d lines about an index that was not saved, want 1", n)
	}
	c.fails([]string{"index=besides", "beside"}, "stage-in", file+",index=besides", "--dir", c.dir)
}
