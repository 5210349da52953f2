package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/show"
)

// randomFiles makes n files of up to size random bytes.
func randomFiles(n, size int) map[string][]byte {
	m := make(map[string][]byte, n)
	r := rand.New(rand.NewPCG(7, 8))
	for i := range n {
		b := make([]byte, size/2+r.IntN(size/2))
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		m[fmt.Sprintf("d%d/f%04d", i%9, i)] = b
	}
	return m
}

// flipSource flips a bit of a source file and keeps its times.
func flipSource(t *testing.T, path string, at int) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	var b [1]byte
	_, err = f.ReadAt(b[:], int64(at))
	b[0] ^= 4
	if err == nil {
		_, err = f.WriteAt(b[:], int64(at))
	}
	if err = errors.Join(err, f.Close(), os.Chtimes(path, info.ModTime(), info.ModTime())); err != nil {
		t.Fatal(err)
	}
}

// TestSourceIsWrong: a lost node's file whose source differs from the staged bytes fails with EIO, and every node's
// status names it until a read succeeds. Verify counts such files, and on request reads them.
func TestSourceIsWrong(t *testing.T) {
	t.Parallel()
	m := randomFiles(300, 60_000)
	src := filepath.Join(t.TempDir(), "set.tar")
	writeTar(t, src, m)
	archive, err := os.ReadFile(src)
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Config{Capacity: bytesOf(m)/4 + 2<<20, Window: 1 << 20, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
	ds := c.Dataset(t, 0, "set")
	status := func(i int) daemon.DatasetStatus {
		for _, s := range c.Nodes[i].Status(context.Background()).Datasets {
			if s.ID == ds.ID {
				return s
			}
		}
		t.Fatalf("node %d does not know the dataset", i)
		return daemon.DatasetStatus{}
	}
	c.fillUp(t, 0)
	had := c.loses(t, 2, ds.ID, m)
	readAll(t, c, ds.ID, had, 1)
	c.wantDisplaced(t, int64(len(had)))
	if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Overflow != int64(len(had)) || r.Files != int64(len(m)-len(had)) {
		t.Errorf("verify: %+v, want %d in the source alone", r, len(had))
	}
	if r := c.verify(t, dataset.VerifySpec{Name: "set", Source: true}); r.Bad != 0 || r.Overflow != 0 || r.Files != int64(len(m)) || r.Bytes != bytesOf(m) || r.Unsummed != 0 {
		t.Errorf("verify with the source: %+v, want %d files", r, len(m))
	}
	bad, at := "", -1
	for _, path := range slices.Sorted(maps.Keys(had)) {
		at = bytes.Index(archive, m[path][1000:1100])
		flipSource(t, src, at)
		if _, err := read(context.Background(), c.Nodes[1], ds.ID, path); err != nil {
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("%s: %v, want EIO", path, err)
			}
			bad = path
			break
		}
		flipSource(t, src, at) // it is still in a window
	}
	if bad == "" {
		t.Fatal("nothing that was flipped was noticed")
	}
	for i := range c.Nodes {
		Eventually(t, "status names the file", func() bool {
			s := status(i)
			return len(s.Unreadable) == 1 && string(s.Unreadable[0].Path) == bad && s.Unreadable[0].Host != ""
		})
	}
	var text bytes.Buffer
	if err := show.Status(&text, c.Nodes[2].Status(context.Background())); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{fmt.Sprintf("%q cannot be read from %s at offset ", bad, src), "has checksum", "stage it in again"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("status says nothing of %q:\n%s", want, &text)
		}
	}
	r := c.verify(t, dataset.VerifySpec{Name: "set", Source: true})
	if r.Bad != 1 || r.Repaired != 0 || len(r.BadFiles) != 1 || string(r.BadFiles[0].Path) != bad || !r.BadFiles[0].Source || !strings.Contains(r.BadFiles[0].Error, src+" at offset ") {
		t.Errorf("verify with the source: %+v", r)
	}
	flipSource(t, src, at)
	if got, err := read(context.Background(), c.Nodes[1], ds.ID, bad); err != nil || !bytes.Equal(got, m[bad]) {
		t.Errorf("%s is right again: %d bytes, %v", bad, len(got), err)
	}
	for i := range c.Nodes {
		Eventually(t, "status is silent", func() bool { return len(status(i).Unreadable) == 0 })
	}
}
