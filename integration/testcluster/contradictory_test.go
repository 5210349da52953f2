package testcluster

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// contradictory makes a tar with members that contradict each other, padded so that it has several regions. want is
// the tree without the members that cannot be staged.
func contradictory(t *testing.T) (archive []byte, want map[string][]byte) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	want = make(map[string][]byte)
	add := func(name string, typ byte, link string, n int) {
		data := bytes.Repeat([]byte{byte(b.Len()>>9) | 1}, n)
		h := &tar.Header{Name: name, Typeflag: typ, Linkname: link, Mode: 0o644, Size: int64(n)}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			t.Fatal(err)
		}
		want[name] = data
	}
	pad := func(k int) {
		for i := range 8 {
			add(fmt.Sprintf("pad/%d/%d", k, i), tar.TypeReg, "", 200_000)
		}
	}
	add("twice", tar.TypeReg, "", 50_000)
	add("self", tar.TypeReg, "", 60_000)
	add("into", tar.TypeReg, "", 70_000)
	pad(0)
	add("alias", tar.TypeLink, "self", 0)
	want["alias"] = want["self"]
	add("dead", tar.TypeLink, "nowhere", 0)
	pad(1)
	add("into/file", tar.TypeReg, "", 100)
	self := want["self"]
	add("self", tar.TypeLink, "self", 0) // as GNU tar writes a file that is named twice
	want["self"] = self
	pad(2)
	add("twice", tar.TypeReg, "", 80_000)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	delete(want, "into")
	delete(want, "dead")
	return b.Bytes(), want
}

// TestSkipTreeless: with on-error=skip, duplicate members, files with paths below them, and hard links without a
// target are counted, named and left out, along with their stored data, for every kind of source; without it the
// dataset fails.
func TestSkipTreeless(t *testing.T) {
	t.Parallel()
	archive, want := contradictory(t)
	dir := t.TempDir()
	plain, packed, many := filepath.Join(dir, "plain.tar"), filepath.Join(dir, "packed.tar.gz"), filepath.Join(dir, "m*.tar")
	for _, name := range []string{plain, filepath.Join(dir, "m0.tar")} {
		if err := os.WriteFile(name, archive, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	packTar(t, plain, packed)
	later := map[string][]byte{"twice": []byte("from the second archive"), "also": bytes.Repeat([]byte("also"), 1<<20)}
	writeTar(t, filepath.Join(dir, "m1.tar"), later) // larger, and read first
	both := maps.Clone(want)
	maps.Copy(both, later)
	c := Start(t, Config{})
	for _, x := range []struct {
		src  string
		want map[string][]byte
		left []string
	}{
		{plain, want, []string{"dead", "into", "self", "twice"}},
		{packed, want, []string{"dead", "into", "self", "twice"}},
		{many, both, []string{"dead", "into", "self", "twice", "twice"}},
	} {
		if err := c.Nodes[1].StageIn(context.Background(), job.Dataset{Source: x.src, Name: "fails"}); err == nil {
			t.Errorf("%s was staged without on-error=skip", x.src)
		}
		before := staged(t, c)
		spec := job.Dataset{Source: x.src, Name: filepath.Base(x.src), Options: stagein.Options{OnError: stagein.OnErrorSkip}}
		if err := c.Nodes[1].StageIn(context.Background(), spec); err != nil {
			t.Fatalf("%s: %v", x.src, err)
		}
		ds := c.Dataset(t, 2, spec.Name)
		if ds.Phase != cluster.Sealed || ds.Skipped != int64(len(x.left)) {
			t.Fatalf("%s: %+v", x.src, ds)
		}
		readAll(t, c, ds.ID, x.want, 1)
		for _, gone := range []string{"into", "dead"} {
			if a, err := attr(c.Nodes[0], ds.ID, gone); err == nil && a.Mode&0o40000 == 0 {
				t.Errorf("%s: %q is there: %+v", x.src, gone, a)
			}
		}
		wantSkips(t, c.Nodes[3], spec.Name, x.left)
		distinct := len(x.want) - 1 // two names for one object
		if got := staged(t, c) - before; got != distinct {
			t.Errorf("%s: the nodes have %d objects, of %d files", x.src, got, distinct)
		}
	}
}

// wantSkips checks that a node lists the skipped entries, files with the place of their data.
func wantSkips(t *testing.T, n *Node, name string, want []string) {
	t.Helper()
	skips, err := daemon.NewCtl(n.Job.CtlSocket()).Skips(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range skips {
		got = append(got, string(s.Path))
		if !strings.Contains(s.Error, fmt.Sprintf("%q", s.Path)) || !strings.Contains(s.Error, "at offset") || !strings.Contains(s.Error, ".tar") {
			t.Errorf("%s: left out %+v", name, s)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("%s: left out %q, want %q", name, got, want)
	}
}

// staged returns the number of objects on all nodes.
func staged(t *testing.T, c *Cluster) (n int) {
	t.Helper()
	for _, node := range c.Nodes {
		n += len(node.objectFiles(t))
	}
	return n
}
