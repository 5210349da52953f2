package testcluster

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// fillUp fills each node with scratch data until only leave bytes are free.
func (c *Cluster) fillUp(t *testing.T, leave int64) {
	t.Helper()
	ctx := context.Background()
	for i, n := range c.Nodes {
		l := metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(i)}
		f, _, err := n.Client.CreateOpen(ctx, metadata.RootIno, fmt.Sprint("full", i), metadata.New{Mode: syscall.S_IFREG | 0o644, Layout: l})
		if err != nil {
			t.Fatal(err)
		}
		off := int64(0)
		for piece := int64(256 << 10); piece >= 4096; {
			s, err := n.Data().Space(ctx)
			if err == nil && s.Free-piece >= leave {
				_, err = f.WriteAt(ctx, make([]byte, piece), off)
			} else if err == nil {
				err = syscall.ENOSPC
			}
			switch {
			case errors.Is(err, syscall.ENOSPC):
				piece /= 4
			case err != nil:
				t.Fatal(err)
			default:
				off += piece
			}
		}
		if err := f.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// loses kills a node, waits until it is declared lost, and returns its files of a dataset by path.
func (c *Cluster) loses(t *testing.T, i int, ds metadata.DatasetID, m map[string][]byte) map[string][]byte {
	t.Helper()
	had := make(map[string][]byte)
	for path, b := range m {
		a, err := attr(c.Nodes[0], ds, path)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 0 && slices.Contains(c.Nodes[0].View().Map.Order(a.Ino, a.Layout), metadata.NodeID(i)) {
			had[path] = b
		}
	}
	if len(had) == 0 {
		t.Fatalf("node %d has nothing of the dataset", i)
	}
	c.Kill(t, i)
	Eventually(t, "the node is given up", func() bool {
		n, _ := c.Nodes[0].View().Map.Node(metadata.NodeID(i))
		return n.State == cluster.Down
	})
	c.Nodes = slices.Delete(c.Nodes, i, i+1)
	return had
}

// overflowed counts the files of the only dataset that are not on their owners, by the status of node 0.
func (c *Cluster) overflowed(t *testing.T) (s daemon.DatasetStatus, files, lacking int64) {
	t.Helper()
	s = c.Nodes[0].Status(context.Background()).Datasets[0]
	for _, x := range s.Overflow {
		files, lacking = files+x.Files, lacking+x.Missing
	}
	return s, files, lacking
}

func writeZip(t *testing.T, path string, m map[string][]byte) {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for p, b := range m {
		f, err := w.Create(p)
		if err == nil {
			_, err = f.Write(b)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, buf.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestLostNodeFindsNoRoom: if the survivors lack free space for a lost node's part of a dataset, its new owners read it
// through from the source for all nodes; status reports this.
func TestLostNodeFindsNoRoom(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(t *testing.T, path string, m map[string][]byte){
		"directory": func(t *testing.T, path string, m map[string][]byte) {
			m["large"] = bytes.Repeat([]byte("0123456789abcdef"), 65<<20/16) // striped
			writeTree(t, path, m)
		},
		"tar": writeTar,
		"zip": writeZip,
	} {
		for _, sums := range []bool{false, true} {
			if sums && name != "tar" {
				continue
			}
			t.Run(fmt.Sprint(name, " verified ", sums), func(t *testing.T) {
				m := randomFiles(200, 60_000)
				src := filepath.Join(t.TempDir(), "src")
				write(t, src, m)
				capacity := bytesOf(m)/4 + 2<<20
				fsys := newCounted()
				c := Start(t, Config{Source: fsys, Capacity: capacity, VerifyReads: sums, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
				ds := c.Dataset(t, 0, "set")
				if s, _, _ := c.overflowed(t); ds.Phase != cluster.Sealed || s.InSource != nil || len(s.Overflow) > 0 {
					t.Fatalf("dataset: %+v", s)
				}
				c.fillUp(t, 0)
				before := fsys.sum()
				had := c.loses(t, 2, ds.ID, m)
				readAll(t, c, ds.ID, m, 2)
				lost := bytesOf(had)
				if large := int64(len(had["large"])); large > 0 {
					lost -= large - large/4
				}
				wasted := int64(12 << 20) // what fetches in flight had read when they found no room
				if n := fsys.sum() - before; n < lost/2 || n > lost+lost/4+wasted {
					t.Errorf("%d bytes came from the source, the lost node had %d", n, lost)
				}
				before = fsys.sum()
				readAll(t, c, ds.ID, m, 1)
				if n := fsys.sum() - before; n > 0 {
					t.Errorf("%d bytes came from the source that were read through before", n)
				}
				c.wantDisplaced(t, int64(len(had)))
				for i, n := range c.Nodes {
					if s, err := n.Data().Space(context.Background()); err != nil || s.Used > capacity {
						t.Errorf("node %d: %+v, %v", i, s, err)
					}
				}
				whole := int64(len(had) - min(len(had["large"]), 1))
				if r := c.verify(t, dataset.VerifySpec{Name: "set"}); r.Bad != 0 || r.Overflow != whole || r.Files != int64(len(m))-whole {
					t.Errorf("verify: %+v, want %d in the source alone", r, whole)
				}
				if r := c.verify(t, dataset.VerifySpec{Name: "set", Source: true}); r.Bad != 0 || r.Files != int64(len(m)) {
					t.Errorf("verify with the source: %+v", r)
				}
			})
		}
	}
}

// wantDisplaced waits until status, as text and JSON, reports this number of files without room.
func (c *Cluster) wantDisplaced(t *testing.T, want int64) {
	t.Helper()
	var files, lacking int64
	var s daemon.DatasetStatus
	Eventually(t, fmt.Sprint(want, " files are overflowed"), func() bool {
		s, files, lacking = c.overflowed(t)
		return files == want && lacking == 0
	})
	if s.Phase != cluster.Sealed || s.Error != "" {
		t.Errorf("dataset: %+v", s)
	}
	b, err := json.Marshal(s)
	if err != nil || !bytes.Contains(b, []byte(`"overflow":[{"host":"host`)) {
		t.Errorf("JSON: %s, %v", b, err)
	}
	var text bytes.Buffer
	if err := show.Status(&text, c.Nodes[0].Status(context.Background())); err != nil {
		t.Fatal(err)
	}
	if want := "set: " + s.Overflow[0].Host + " has no room for "; !strings.Contains(text.String(), want) {
		t.Errorf("status says nothing of %q:\n%s", want, &text)
	}
}

// TestLostNodeFindsSomeRoom: files that fit are fetched again, and the rest is read through from the source.
func TestLostNodeFindsSomeRoom(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(t *testing.T, path string, m map[string][]byte){
		"directory": func(t *testing.T, path string, m map[string][]byte) { writeTree(t, path, m) },
		"tar":       writeTar,
	} {
		t.Run(name, func(t *testing.T) {
			m := randomFiles(200, 60_000)
			src := filepath.Join(t.TempDir(), "src")
			write(t, src, m)
			c := Start(t, Config{Capacity: bytesOf(m)/4 + 2<<20, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
			ds := c.Dataset(t, 0, "set")
			c.fillUp(t, bytesOf(m)/4/3/2) // half of what each must take over
			had := c.loses(t, 1, ds.ID, m)
			readAll(t, c, ds.ID, m, 1)
			var files int64
			Eventually(t, "some are overflowed", func() bool { _, files, _ = c.overflowed(t); return files > 0 })
			if files < int64(len(had)/5) || files > int64(len(had)*4/5) {
				t.Errorf("of %d files %d are overflowed, want about half", len(had), files)
			}
			if r := c.verify(t, dataset.VerifySpec{Name: "set", Source: true}); r.Bad != 0 || r.Files != int64(len(m)) {
				t.Errorf("verify with the source: %+v", r)
			}
		})
	}
}

// TestLostNodeAndItsSource: only files of a lost node that no source has fail with EIO; status reports which, how
// many, and what to do, with and without room on the nodes.
func TestLostNodeAndItsSource(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		t.Run(fmt.Sprint("full ", full), func(t *testing.T) {
			m := randomFiles(100, 60_000)
			src := filepath.Join(t.TempDir(), "src")
			writeTree(t, src, m)
			c := Start(t, Config{Capacity: bytesOf(m)/2 + 2<<20, Datasets: []job.Dataset{{Source: src, Name: "set"}}})
			ds := c.Dataset(t, 0, "set")
			if full {
				c.fillUp(t, 0)
			}
			if err := os.Rename(src, src+".away"); err != nil {
				t.Fatal(err)
			}
			had := c.loses(t, 2, ds.ID, m)
			for path, want := range m {
				got, err := read(context.Background(), c.Nodes[0], ds.ID, path)
				if had[path] != nil && !errors.Is(err, syscall.EIO) || had[path] == nil && (err != nil || !bytes.Equal(got, want)) {
					t.Errorf("%s: %d bytes, %v; the lost node had it: %v", path, len(got), err, had[path] != nil)
				}
			}
			var s daemon.DatasetStatus
			Eventually(t, "status says how many files are not to be had", func() bool {
				var files, lacking int64
				s, files, lacking = c.overflowed(t)
				return files+lacking == int64(len(had)) && (files > 0) == full && len(s.Unreadable) > 0
			})
			if u := s.Unreadable[0]; had[string(u.Path)] == nil || !strings.Contains(u.Error, "no such file") {
				t.Errorf("unreadable: %+v", u)
			}
			var text bytes.Buffer
			if err := show.Status(&text, c.Nodes[0].Status(context.Background())); err != nil {
				t.Fatal(err)
			}
			want := []string{"cannot be read from " + src, "each read tries again"}
			if !full {
				want = append(want, "files that it owns: ", "stage the source again")
			}
			for _, w := range want {
				if !strings.Contains(text.String(), w) {
					t.Errorf("status says nothing of %q:\n%s", w, &text)
				}
			}
			if err := os.Rename(src+".away", src); err != nil {
				t.Fatal(err)
			}
			readAll(t, c, ds.ID, m, 1)
			Eventually(t, "status is silent of it", func() bool {
				s, _, lacking := c.overflowed(t)
				return len(s.Unreadable) == 0 && lacking == 0
			})
		})
	}
}

// TestLostNodeOfWhatCannotStay: a file without room that cannot be read from the middle of its archive is EIO, and
// status reports what to do; afterwards it can be read.
func TestLostNodeOfWhatCannotStay(t *testing.T) {
	t.Parallel()
	m := randomFiles(100, 60_000)
	src := filepath.Join(t.TempDir(), "set.tar.gz")
	writeTar(t, src, m)
	packOne(t, src)
	c := Start(t, Config{Capacity: bytesOf(m)/2 + 2<<20, Datasets: []job.Dataset{{
		Source: src, Name: "set", Options: stagein.Options{Overflow: stagein.OverflowFail},
	}}})
	ds := c.Dataset(t, 0, "set")
	c.fillUp(t, 0)
	had := c.loses(t, 2, ds.ID, m)
	for path, want := range m {
		got, err := read(context.Background(), c.Nodes[0], ds.ID, path)
		if had[path] != nil && !errors.Is(err, syscall.EIO) || had[path] == nil && (err != nil || !bytes.Equal(got, want)) {
			t.Errorf("%s: %d bytes, %v; the lost node had it: %v", path, len(got), err, had[path] != nil)
		}
	}
	Eventually(t, "status says what to do", func() bool {
		s, _, lacking := c.overflowed(t)
		return lacking == int64(len(had)) && len(s.Unreadable) > 0 && strings.Contains(s.Unreadable[0].Error, "remove files of scratch")
	})
	for i := range 4 {
		if _, err := c.Nodes[0].Client.Unlink(context.Background(), metadata.RootIno, fmt.Sprint("full", i)); err != nil {
			t.Errorf("unlink: %v", err)
		}
	}
	for _, n := range c.Nodes {
		Eventually(t, "there is room", func() bool {
			s, err := n.Data().Space(context.Background())
			return err == nil && s.Free > bytesOf(had)
		})
	}
	readAll(t, c, ds.ID, m, 1)
	Eventually(t, "status is silent", func() bool {
		s, files, lacking := c.overflowed(t)
		return files == 0 && lacking == 0 && len(s.Unreadable) == 0
	})
}
