package testcluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// dirent is an entry as getdents64 returns it; off is the offset of the next one.
type dirent struct {
	name string
	off  int64
}

// getdents reads some entries at the current offset of d.
func getdents(t *testing.T, d *os.File) (all []dirent) {
	t.Helper()
	b := make([]byte, 8<<10)
	n, err := unix.Getdents(int(d.Fd()), b)
	if err != nil {
		t.Fatal(err)
	}
	for b = b[:n]; len(b) > 0; {
		size := binary.NativeEndian.Uint16(b[16:])
		name, _, _ := bytes.Cut(b[19:size], []byte{0})
		all = append(all, dirent{string(name), int64(binary.NativeEndian.Uint64(b[8:]))})
		b = b[size:]
	}
	return all
}

// wideDir makes a directory with n files and waits until it is wide.
func wideDir(t *testing.T, c *Cluster, ms []*Mounted, name string, n int) {
	t.Helper()
	dir := filepath.Join(ms[0].Scratch, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := unix.Mknod(filepath.Join(ms[i%len(ms)].Scratch, name, fmt.Sprintf("f%05d", i)), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	st, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	Eventually(t, "it is wide", func() bool { return c.epochOf(inoOf(st)) != 0 })
}

// TestWideSeekdir: seekdir in a wide directory returns to the position of telldir, and rewinddir shows new entries.
func TestWideSeekdir(t *testing.T) {
	t.Parallel()
	const n = 3000
	c := Start(t, Config{SplitAt: 500})
	ms := c.Mount(t)
	wideDir(t, c, ms, "d", n)
	d, err := os.Open(filepath.Join(ms[1].Scratch, "d"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var all []dirent
	for es := getdents(t, d); len(es) > 0; es = getdents(t, d) {
		all = append(all, es...)
	}
	if len(all) != n+2 {
		t.Fatalf("%d entries, want %d", len(all), n+2)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		i := r.IntN(len(all) - 1)
		if _, err := d.Seek(all[i].off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		for k, e := range getdents(t, d) {
			if e != all[i+1+k] {
				t.Fatalf("after entry %d, %v: entry %d is %v, want %v", i, all[i], k, e, all[i+1+k])
			}
		}
	}
	if err := os.WriteFile(filepath.Join(ms[2].Scratch, "d", "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	found := false
	for es := getdents(t, d); len(es) > 0; es = getdents(t, d) {
		for _, e := range es {
			found = found || e.name == "new"
		}
	}
	if !found {
		t.Error("what is new is not there after rewinddir")
	}
}

// TestWideRemoveAll: a wide directory is removed while others create in it: their creates fail in the end, and
// nothing is left.
func TestWideRemoveAll(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{SplitAt: 200})
	ms := c.Mount(t)
	wideDir(t, c, ms, "d", 600)
	var g errgroup.Group
	var made atomic.Int64
	for k, m := range ms[1:] {
		g.Go(func() error {
			for i := 0; ; i++ {
				err := os.WriteFile(filepath.Join(m.Scratch, "d", fmt.Sprintf("late%d.%d", k, i)), nil, 0o644)
				if errors.Is(err, syscall.ENOENT) {
					return nil
				}
				if err != nil {
					return err
				}
				made.Add(1)
				if i > 300 {
					return nil
				}
			}
		})
	}
	dir := filepath.Join(ms[0].Scratch, "d")
	gone := false
	for end := time.Now().Add(Patience); !gone && time.Now().Before(end); {
		err := os.RemoveAll(dir)
		gone = err == nil
		if err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
			t.Fatal(err)
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files came meanwhile", made.Load())
	if !gone {
		t.Fatal("it could not be removed")
	}
	for _, m := range ms {
		if es, err := os.ReadDir(m.Scratch); err != nil || len(es) != 0 {
			t.Errorf("node %d: %d entries are left, %v", m.Node, len(es), err)
		}
	}
}

// TestRemovedWhileSplit: a process lists and unlinks like rm -r while the directory is split: it sees each name once,
// and each name exists.
func TestRemovedWhileSplit(t *testing.T) {
	t.Parallel()
	const n, splitAt = 1500, 1000 // more than one page of a cursor
	c := Start(t, Config{SplitAt: splitAt})
	ms := c.Mount(t)
	path := filepath.Join(ms[0].Scratch, "d")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := unix.Mknod(filepath.Join(path, fmt.Sprintf("f%05d", i)), unix.S_IFREG|0o644, 0); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(ms[3].Scratch, "d")
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	st, err := d.Stat()
	if err != nil {
		t.Fatal(err)
	}
	removed := 0
	for es := getdents(t, d); len(es) > 0; es = getdents(t, d) {
		for _, e := range es {
			if e.name == "." || e.name == ".." {
				continue
			}
			if err := unix.Unlink(filepath.Join(dir, e.name)); err != nil {
				t.Fatalf("unlink of entry %d, %s: %v", removed, e.name, err)
			}
			removed++
			if removed == 100 {
				Eventually(t, "it is split", func() bool { return c.epochOf(inoOf(st)) != 0 })
			}
		}
	}
	if removed != n {
		t.Errorf("%d entries were removed, want %d", removed, n)
	}
	if err := unix.Rmdir(dir); err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		if _, err := os.Stat(filepath.Join(m.Scratch, "d")); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("node %d: after rmdir: %v", m.Node, err)
		}
	}
}
