package testcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
)

// change is a change that another node makes to the directory d (of the parent dir) or in it, and how it is observed.
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

// TestKeptDirectoriesAreTrue: directory data cached by a mount and its client is correct at the moment when another
// node's change returns.
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

// keep stats a directory until the node answers from its own lease, and returns the result.
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

// TestHolderThatIsAway: a change waits for an unreachable lease holder no longer than the lease lasts.
func TestHolderThatIsAway(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	var name string
	for i := 0; ; i++ { // until its home is not the node that will be away
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
	kept, cancel := context.WithTimeout(ctx, time.Second) // cached data takes no time, and other nodes do not answer
	defer cancel()
	if e, err := c.Nodes[3].Client.Lookup(kept, metadata.RootIno, name); err == nil {
		t.Errorf("the node that is away still has %v", e)
	}
}

// TestNewFileIsTrue: a change that another node makes to a file right after the open that created it is seen by the
// first stat.
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

// fileChanges lists changes that another node makes to the file f of dir.
var fileChanges = []change{
	{"chmod", func(_, f string) error { return os.Chmod(f, 0o600) }, func(_, f string, _ os.FileInfo) error {
		fi, err := stat(f)
		if err == nil && fi.Mode().Perm() != 0o600 {
			err = fmt.Errorf("mode %o, want 600", fi.Mode().Perm())
		}
		return err
	}},
	{"utimes", changes[1].do, changes[1].seen},
	{"write", func(_, f string) error { return writeAt(f, os.O_WRONLY, "longer than it was") }, sized(18)},
	{"append", func(_, f string) error { return writeAt(f, os.O_WRONLY|os.O_APPEND, "more") }, sized(7)},
	{"truncate", func(_, f string) error { return os.Truncate(f, 1) }, sized(1)},
	{"setxattr", func(_, f string) error { return syscall.Setxattr(f, "user.a", []byte("b"), 0) }, ctimeLater},
	{"link", func(_, f string) error { return os.Link(f, f+".link") }, linked(2)},
	{"unlink of its other name", func(_, f string) error { return errors.Join(os.Link(f, f+".link"), os.Remove(f+".link")) }, ctimeLater},
	{"unlink", func(_, f string) error { return os.Remove(f) }, gone},
	{"rename", func(_, f string) error { return os.Rename(f, f+".moved") }, func(dir, f string, before os.FileInfo) error {
		return errors.Join(gone(dir, f, before), ctimeLater(dir, f+".moved", before))
	}},
	{"rename to another directory", func(dir, f string) error {
		return errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o755), os.Rename(f, filepath.Join(dir, "sub/f")))
	}, gone},
	{"rename over it", func(_, f string) error {
		return errors.Join(os.WriteFile(f+".new", []byte("new one"), 0o644), os.Rename(f+".new", f))
	}, sized(7)},
}

func writeAt(f string, flags int, text string) error {
	w, err := os.OpenFile(f, flags, 0)
	if err != nil {
		return err
	}
	_, err = w.WriteString(text)
	return errors.Join(err, w.Close())
}

func sized(n int64) func(_, f string, _ os.FileInfo) error {
	return func(_, f string, _ os.FileInfo) error {
		fi, err := stat(f)
		if err == nil && fi.Size() != n {
			err = fmt.Errorf("%d bytes, want %d", fi.Size(), n)
		}
		return err
	}
}

func linked(n uint64) func(_, f string, _ os.FileInfo) error {
	return func(_, f string, _ os.FileInfo) error {
		fi, err := stat(f)
		if err == nil && fi.Sys().(*syscall.Stat_t).Nlink != n {
			err = fmt.Errorf("%d links, want %d", fi.Sys().(*syscall.Stat_t).Nlink, n)
		}
		return err
	}
}

func ctimeLater(_, f string, before os.FileInfo) error {
	fi, err := stat(f)
	if err != nil {
		return err
	}
	was := time.Unix(before.Sys().(*syscall.Stat_t).Ctim.Unix())
	if now := time.Unix(fi.Sys().(*syscall.Stat_t).Ctim.Unix()); !now.After(was) {
		err = fmt.Errorf("ctime %v, as before", now)
	}
	return err
}

// TestKeptFilesAreTrue: file data cached by a mount and its client is correct at the moment when another node's
// change returns, also for a process that has the file open.
func TestKeptFilesAreTrue(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ms := c.Mount(t, 1, 2)
	there, here := ms[0].Scratch, ms[1].Scratch
	var files []string
	for i := range fileChanges {
		dir := fmt.Sprintf("dir%d", i)
		if err := os.Mkdir(filepath.Join(there, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		files = append(files, filepath.Join(dir, "f"))
		if err := os.WriteFile(filepath.Join(there, files[i]), []byte("old"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, ch := range fileChanges {
		t.Run(ch.name, func(t *testing.T) {
			f, err := os.Open(filepath.Join(here, files[i]))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			before := keep(t, c.Nodes[2], filepath.Join(here, files[i]))
			if _, err := f.Stat(); err != nil { // loads it into the kernel
				t.Fatal(err)
			}
			dir := filepath.Dir(files[i])
			if err := ch.do(filepath.Join(there, dir), filepath.Join(there, files[i])); err != nil {
				t.Fatal(err)
			}
			if err := ch.seen(filepath.Join(here, dir), filepath.Join(here, files[i]), before); err != nil {
				t.Error(err)
			}
			open, err := f.Stat()
			if err != nil {
				t.Fatal(err)
			}
			same, err := os.Stat(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
			if err == nil && (open.Size() != same.Size() || open.Mode() != same.Mode()) {
				t.Errorf("fstat has %d bytes, mode %o; stat of the descriptor %d, %o", open.Size(), open.Mode(), same.Size(), same.Mode())
			}
		})
	}
}

// TestListedFilesCostNoCall: after a listing, the attributes of remote files cost no call.
func TestListedFilesCostNoCall(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{})
	ms := c.Mount(t, 1, 2)
	n := c.Nodes[2]
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	var dir string
	for i := 0; ; i++ { // until its home is not the listing node
		dir = fmt.Sprintf("d%d", i)
		if err := os.Mkdir(filepath.Join(ms[0].Scratch, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		if e, err := n.Client.Lookup(ctx, metadata.RootIno, dir); err != nil {
			t.Fatal(err)
		} else if e.Ino.Home() != n.Client.Self() {
			break
		}
	}
	for i := range 40 {
		if err := os.WriteFile(filepath.Join(ms[0].Scratch, dir, fmt.Sprintf("f%d", i)), []byte("x"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	Eventually(t, "files that were listed cost no call", func() bool {
		es, err := os.ReadDir(filepath.Join(ms[1].Scratch, dir))
		if err != nil || len(es) != 40 {
			t.Fatalf("%d entries, %v, want 40", len(es), err)
		}
		asked := n.Client.Stats().MetaRemote
		for _, e := range es {
			if fi, err := e.Info(); err != nil || fi.Size() != 1 {
				t.Fatalf("%s: %v, %v", e.Name(), fi, err)
			}
		}
		return n.Client.Stats().MetaRemote == asked
	})
}

// TestOwnMkdirBesideStat: the answer to a stat of a directory, from the lease, reaches the kernel after a mkdir in it
// on the same node has returned. The kernel discards it.
func TestOwnMkdirBesideStat(t *testing.T) {
	c := Start(t, Config{})
	m := c.Mount(t, 2)[0]
	d := filepath.Join(m.Scratch, "d")
	if err := os.Mkdir(d, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	keep(t, c.Nodes[2], d)
	var armed atomic.Bool
	armed.Store(true)
	held, release := make(chan struct{}), make(chan struct{})
	m.Trace(func(r mount.Request) {
		if r.Op == "getattr" && armed.CompareAndSwap(true, false) {
			close(held)
			<-release
		}
	})
	stated := make(chan error, 1)
	go func() {
		var st unix.Statx_t
		stated <- unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	}()
	<-held
	merr := unix.Mkdirat(int(f.Fd()), "sub", 0o755) // with a path, the kernel would look up d first
	close(release)
	if err := errors.Join(merr, <-stated); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Nlink != 3 {
		t.Errorf("after a mkdir the directory has %d links, %v, want 3", st.Nlink, err)
	}
}
