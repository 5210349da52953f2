package testcluster

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// hugeEntries is a million in "make huge".
var hugeEntries = flag.Int("entries", 12_000, "entries of the huge directory")

// TestHugeDirectory: four nodes fill one directory through their mounts. Each lists it completely with flat memory
// use, its first names appear at once, and rm -r removes it. Nothing in the test depends on its size.
func TestHugeDirectory(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a while")
	}
	NeedFUSE(t)
	c := Start(t, Config{SplitAt: min(1<<17, *hugeEntries/4)})
	ms := c.Mount(t)
	dir := func(m *Mounted) string { return filepath.Join(m.Scratch, "huge") }
	if err := os.Mkdir(dir(ms[0]), 0o755); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	fillHuge(t, ms, dir)
	t.Logf("%d entries in %v", *hugeEntries, time.Since(began))
	st, err := os.Stat(dir(ms[1]))
	if err != nil {
		t.Fatal(err)
	}
	e := c.epochOf(inoOf(st))
	if e == 0 {
		t.Fatal("the directory is not wide")
	}
	checkHead(t, c, ms[2], dir(ms[2]))
	perNode := make([]int, len(ms))
	for _, m := range ms {
		clear(perNode)
		began := time.Now()
		grown := listHuge(t, dir(m), func(name string) {
			perNode[c.Nodes[0].View().Map.EntryHome(inoOf(st), name, e)]++
		})
		t.Logf("node %d lists it in %v; the heap grew by %d KiB", m.Node, time.Since(began), grown>>10)
		if grown > 48<<20 {
			t.Errorf("a listing by node %d took %d MiB of memory", m.Node, grown>>20)
		}
	}
	for i, n := range perNode {
		if share := float64(*hugeEntries) / float64(len(ms)); math.Abs(float64(n)-share) > 6*math.Sqrt(share) {
			t.Errorf("node %d has %d of %d entries", i, n, *hugeEntries)
		}
	}
	began = time.Now()
	if out, err := exec.Command("rm", "-r", dir(ms[3])).CombinedOutput(); err != nil {
		t.Fatalf("rm -r: %v: %s", err, out)
	}
	t.Logf("rm -r in %v", time.Since(began))
	if _, err := os.Stat(dir(ms[0])); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("after rm -r: %v", err)
	}
}

func inoOf(st os.FileInfo) metadata.Ino { return metadata.Ino(st.Sys().(*syscall.Stat_t).Ino) }

// fillHuge makes each mount's share of the entries, half of them opened and closed.
func fillHuge(t *testing.T, ms []*Mounted, dir func(*Mounted) string) {
	t.Helper()
	var g errgroup.Group
	for k, m := range ms {
		for half := range 2 {
			g.Go(func() error {
				for i := k; i < *hugeEntries; i += len(ms) {
					path := fmt.Sprintf("%s/entry-%07d", dir(m), i)
					if i/len(ms)%2 != half {
						continue
					}
					if half == 0 {
						if err := unix.Mknod(path, unix.S_IFREG|0o644, 0); err != nil {
							return fmt.Errorf("%s: %w", path, err)
						}
						continue
					}
					f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
					if err != nil {
						return err
					}
					if err := f.Close(); err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// checkHead checks that the first names cost a few calls, not a whole listing.
func checkHead(t *testing.T, c *Cluster, m *Mounted, dir string) {
	t.Helper()
	calls := func() int64 {
		s := c.Nodes[m.Node].Client.Stats()
		return s.MetaLocal + s.MetaRemote
	}
	before, began := calls(), time.Now()
	out, err := exec.Command("sh", "-c", `ls -U "$1" | head -n 3`, "sh", dir).Output()
	if err != nil || strings.Count(string(out), "entry-") != 3 {
		t.Errorf("ls -U | head = %q, %v", out, err)
	}
	t.Logf("ls -U | head in %v and %d calls", time.Since(began), calls()-before)
	before = calls()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if names, err := d.Readdirnames(10); err != nil || len(names) != 10 {
		t.Errorf("the first 10 names are %v, %v", names, err)
	}
	if n := calls() - before; n > 8 {
		t.Errorf("10 names took %d calls", n)
	}
}

// listHuge lists dir, calls each once per name, and returns the heap growth.
func listHuge(t *testing.T, dir string, each func(string)) (grown uint64) {
	t.Helper()
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	seen := make([]bool, *hugeEntries)
	before, n := heap(), 0
	for {
		names, err := d.Readdirnames(10_000)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			var i int
			if _, err := fmt.Sscanf(name, "entry-%d", &i); err != nil || i >= len(seen) || seen[i] {
				t.Fatalf("%q is listed, %v, or twice", name, err)
			}
			seen[i] = true
			n++
			each(name)
		}
		if n%100_000 == 0 || n == len(names) {
			grown = max(grown, max(heap(), before)-before)
		}
	}
	if n != len(seen) {
		t.Fatalf("%d entries are listed, want %d", n, len(seen))
	}
	return grown
}

// heap returns the heap bytes in use after a collection.
func heap() uint64 {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}
