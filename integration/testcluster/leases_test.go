package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// change is what another node does to the directory d (of the parent dir) or
// in it, and how that is seen.
type change struct {
	name string
	do   func(dir, d string) error
	seen func(dir, d string, before os.FileInfo) error
}

func stat(p string) (os.FileInfo, error) { return os.Lstat(p) }

func newer(_, d string, before os.FileInfo) error {
	now, err := stat(d)
	if err != nil {
		return err
	}
	if !now.ModTime().After(before.ModTime()) {
		return fmt.Errorf("mtime %v, as before", now.ModTime())
	}
	return nil
}

func gone(_, d string, _ os.FileInfo) error {
	if _, err := stat(d); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stat = %v, want that it is gone", err)
	}
	return nil
}

var changes = []change{
	{"chmod", func(_, d string) error { return os.Chmod(d, 0o710) }, func(_, d string, _ os.FileInfo) error {
		fi, err := stat(d)
		if err == nil && fi.Mode().Perm() != 0o710 {
			err = fmt.Errorf("mode %o, want 710", fi.Mode().Perm())
		}
		return err
	}},
	{"utimes", func(_, d string) error { return os.Chtimes(d, time.Time{}, time.Unix(77, 5)) }, func(_, d string, _ os.FileInfo) error {
		fi, err := stat(d)
		if err == nil && !fi.ModTime().Equal(time.Unix(77, 5)) {
			err = fmt.Errorf("mtime %v, want %v", fi.ModTime(), time.Unix(77, 5))
		}
		return err
	}},
	{"create in it", func(_, d string) error { return os.WriteFile(filepath.Join(d, "new"), nil, 0o644) }, newer},
	{"unlink in it", func(_, d string) error { return os.Remove(filepath.Join(d, "old")) }, newer},
	{"mkdir in it", func(_, d string) error { return os.Mkdir(filepath.Join(d, "sub"), 0o755) }, func(dir, d string, before os.FileInfo) error {
		fi, err := stat(d)
		if err != nil {
			return err
		}
		if n, was := fi.Sys().(*syscall.Stat_t).Nlink, before.Sys().(*syscall.Stat_t).Nlink; n != was+1 {
			return fmt.Errorf("%d links, want %d", n, was+1)
		}
		return newer(dir, d, before)
	}},
	{"rename away", func(dir, d string) error { return os.Rename(d, filepath.Join(dir, "moved")) }, gone},
	{"rmdir", func(_, d string) error { return errors.Join(os.Remove(filepath.Join(d, "old")), os.Remove(d)) }, gone},
	{"rename over it", func(dir, d string) error {
		return errors.Join(os.Remove(filepath.Join(d, "old")), syscall.Rename(filepath.Join(dir, "other"), d))
	}, func(_, d string, before os.FileInfo) error {
		fi, err := stat(d)
		if err == nil && os.SameFile(fi, before) {
			err = errors.New("the old directory is there")
		}
		return err
	}},
}

// What a mount and its client keep of directories is right at the moment when
// another node's change returns.
func TestKeptDirectoriesAreTrue(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ms := c.Mount(t, 1, 2)
	there, here := ms[0].Scratch, ms[1].Scratch
	for i, ch := range changes {
		t.Run(ch.name, func(t *testing.T) {
			dir := fmt.Sprintf("dir%d", i)
			for _, d := range []string{dir, dir + "/d", dir + "/other"} {
				if err := os.Mkdir(filepath.Join(there, d), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(filepath.Join(there, dir, "d/old"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			before := keep(t, c.Nodes[2], filepath.Join(here, dir, "d"))
			if err := ch.do(filepath.Join(there, dir), filepath.Join(there, dir, "d")); err != nil {
				t.Fatal(err)
			}
			if err := ch.seen(filepath.Join(here, dir), filepath.Join(here, dir, "d"), before); err != nil {
				t.Error(err)
			}
		})
	}
}

// keep looks at a directory until the node answers by itself, and returns what
// it says.
func keep(t *testing.T, n *Node, d string) (fi os.FileInfo) {
	t.Helper()
	Eventually(t, d+" is kept", func() bool {
		var err error
		asked := n.Client.Stats().MetaRemote + n.Client.Stats().MetaLocal
		for range 3 {
			if fi, err = stat(d); err != nil {
				t.Fatal(err)
			}
		}
		return n.Client.Stats().MetaRemote+n.Client.Stats().MetaLocal == asked
	})
	return fi
}

// A change waits for a holder that cannot be told no longer than its promise.
func TestHolderThatIsAway(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	var name string
	for i := 0; ; i++ { // until one is not on the node that will be away
		name = fmt.Sprintf("d%d", i)
		a, err := c.Nodes[0].Client.Mkdir(ctx, metadata.RootIno, name, metadata.New{Mode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
		if a.Ino.Home() != 3 {
			break
		}
	}
	Eventually(t, "node 3 keeps it", func() bool {
		asked := c.Nodes[3].Client.Stats().MetaRemote
		if _, err := c.Nodes[3].Client.Lookup(ctx, metadata.RootIno, name); err != nil {
			t.Fatal(err)
		}
		return c.Nodes[3].Client.Stats().MetaRemote == asked
	})
	c.Cut(3)
	if err := c.Nodes[0].Client.Rmdir(ctx, metadata.RootIno, name); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Nodes[0].Client.Lookup(ctx, metadata.RootIno, name); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("lookup after rmdir = %v, want ENOENT", err)
	}
	kept, cancel := context.WithTimeout(ctx, time.Second) // what it has takes no time, and others do not answer
	defer cancel()
	if e, err := c.Nodes[3].Client.Lookup(kept, metadata.RootIno, name); err == nil {
		t.Errorf("the node that is away still has %v", e)
	}
}

// What another node does to a file right after its open has made it is seen by
// the first question about it.
func TestNewFileIsTrue(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ms := c.Mount(t, 1, 2)
	for i := range 50 {
		name := fmt.Sprintf("f%d", i)
		f, err := os.OpenFile(filepath.Join(ms[0].Scratch, name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(ms[1].Scratch, name), 0o600); err != nil {
			t.Fatal(err)
		}
		fi, err := f.Stat()
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %o, %v, want 600", name, fi.Mode().Perm(), err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
