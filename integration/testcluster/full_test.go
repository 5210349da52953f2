package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// smallDisk mounts a small separate filesystem.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bivouac-test", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skipf("no tmpfs can be mounted: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill writes 1 MiB files named with prefix until one does not fit.
func fill(t *testing.T, dir, prefix string) (names []string) {
	t.Helper()
	for i := range 10_000 {
		name := filepath.Join(dir, fmt.Sprint(prefix, i))
		err := os.WriteFile(name, bytes.Repeat([]byte{byte(i + 1)}, 1<<20), 0o644)
		names = append(names, name)
		if errors.Is(err, syscall.ENOSPC) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("10 GB fit")
	return nil
}

// removeAll removes the files that fill made, and waits until their space is free.
func removeAll(t *testing.T, c *Cluster, names []string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(name); err != nil {
			t.Errorf("on a full disk: %v", err)
		}
	}
	c.spaceBack(t)
}

// TestQuotaIsFull: a write that does not fit fails with ENOSPC at once; all earlier writes are readable on every
// node; after the files are removed the space is free again.
func TestQuotaIsFull(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 3, Capacity: 8 << 20})
	ms := c.Mount(t, 0, 1)
	var st syscall.Statfs_t
	if err := syscall.Statfs(ms[0].Scratch, &st); err != nil || int64(st.Blocks)*st.Bsize != 24<<20 {
		t.Errorf("statfs: %d bytes, %v, want the 24 MiB of three nodes", int64(st.Blocks)*st.Bsize, err)
	}
	names := fill(t, ms[0].Scratch, "f")
	if n := len(names) - 1; n < 18 || n > 24 {
		t.Errorf("%d files of 1 MiB fit in 3 nodes of 8 MiB", n)
	}
	for i, name := range names[:len(names)-1] {
		b, err := os.ReadFile(filepath.Join(ms[1].Scratch, filepath.Base(name)))
		if err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(i + 1)}, 1<<20)) {
			t.Errorf("%s there: %d bytes, %v", name, len(b), err)
		}
	}
	// Existing data can still be overwritten, from both sides.
	f, err := os.OpenFile(filepath.Join(ms[1].Scratch, "f0"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, 1<<20), 0); err != nil {
		t.Errorf("a write over what is there, in a full job: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	removeAll(t, c, names)
	again := fill(t, ms[1].Scratch, "g")
	if len(again) < len(names)-3 {
		t.Errorf("%d files fit the second time, %d the first", len(again), len(names))
	}
	removeAll(t, c, again)
}

// TestDiskIsFull: on a disk full of data, and then of metadata too, everything can be removed and then made again.
func TestDiskIsFull(t *testing.T) {
	t.Parallel()
	small := smallDisk(t, "192m")
	c := Start(t, Config{Nodes: 2, Store: func(i int) []string {
		if i == 0 {
			return []string{small}
		}
		return []string{t.TempDir()}
	}})
	m := c.Mount(t, 0)[0]
	dir := filepath.Join(m.Scratch, "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setxattr(dir, "user.bivouac.layout", []byte("local"), 0); err != nil {
		t.Fatal(err)
	}
	names := fill(t, dir, "f")
	home, ctx := c.Nodes[0].Meta(), context.Background()
	var made int
	for full := error(nil); !errors.Is(full, syscall.ENOSPC); made++ {
		a, err := home.Create(ctx, metadata.RootIno, fmt.Sprint("meta", made), metadata.New{Mode: syscall.S_IFREG | 0o644})
		if full = err; err == nil {
			full = home.Setxattr(ctx, a.Ino, metadata.Xattr{Name: "user.big", Value: make([]byte, metadata.MaxXattrValue)})
		}
		if full != nil && !errors.Is(full, syscall.ENOSPC) || made > 10_000 {
			t.Fatalf("after %d files with attributes: %v", made, full)
		}
	}
	if err := os.Mkdir(filepath.Join(m.Scratch, "more"), 0o755); err != nil && !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("mkdir on a full disk = %v", err)
	}
	for i := range made {
		if err := os.Remove(filepath.Join(m.Scratch, fmt.Sprint("meta", i))); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("on a disk full of metadata: %v", err)
		}
	}
	removeAll(t, c, names)
	Eventually(t, "a file can be written where all was removed", func() bool {
		return os.WriteFile(filepath.Join(dir, "after"), make([]byte, 1<<20), 0o644) == nil
	})
}
