package mounts

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// usedIn looks for who uses a directory.
func usedIn(t *testing.T, dir string) *directories {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO, &st); err != nil {
		t.Fatal(err)
	}
	return &directories{dev: fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), root: metadata.Ino(st.Ino), proc: procfs{}}
}

// TestUsed: a directory is in use by who has it open and by who works in it, and a
// file in it uses it not.
func TestUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	dir := t.TempDir()
	d := usedIn(t, dir)
	wantUsed(t, d, "nobody's directory", false)
	f, err := os.Create(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	wantUsed(t, d, "that of an open file", false)
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	wantUsed(t, d, "an open directory", true)
	_ = open.Close() // read only
	user := exec.Command("sleep", "1000")
	user.Dir = dir
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, d, "a working directory", true)
	_ = user.Process.Kill()
	_ = user.Wait() // it was killed
	wantUsed(t, d, "what was left", false)
}

// counted is a /proc that counts what is asked of it.
type counted struct {
	procfs
	lists, reads map[string]int // of what, whosever it is
}

func (c counted) list(dir string) ([]string, error) {
	c.lists[filepath.Base(dir)]++
	return c.procfs.list(dir)
}

func (c counted) read(file string) ([]byte, error) {
	c.reads[filepath.Base(filepath.Dir(file))]++
	return c.procfs.read(file)
}

// TestUsedLittle: /proc is listed once for a look. Who has his working directory in the
// dataset is found before any descriptor is looked at, and who had a directory open the
// last time is looked at before all others.
func TestUsedLittle(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	dir := t.TempDir()
	d := usedIn(t, dir)
	look := func(what string) counted {
		t.Helper()
		c := counted{lists: make(map[string]int), reads: make(map[string]int)}
		d.proc = c
		wantUsed(t, d, what, true)
		if n := c.lists["proc"]; n != 1 {
			t.Errorf("%s: /proc is listed %d times, want once", what, n)
		}
		return c
	}
	user := exec.Command("sleep", "1000")
	user.Dir = dir
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	if c := look("a working directory"); c.lists["fdinfo"] != 0 || c.reads["fdinfo"] != 0 {
		t.Errorf("descriptors are looked at: %v, %v", c.lists, c.reads)
	}
	_ = user.Process.Kill()
	_ = user.Wait() // it was killed
	open, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	look("an open directory")
	if c := look("an open directory once more"); c.lists["fdinfo"] != 1 {
		t.Errorf("the descriptors of %d processes are looked at, want those of the last user", c.lists["fdinfo"])
	}
}

func wantUsed(t *testing.T, d *directories, what string, want bool) {
	t.Helper()
	if used, err := d.used(); err != nil || used != want {
		t.Errorf("%s: used %v, %v, want %v", what, used, err, want)
	}
}

// TestDirectories: those of the dataset are told from its files, from others' and from
// what the kernel calls the root.
func TestDirectories(t *testing.T) {
	d := directories{dataset: 3, root: 1}
	for ino, want := range map[metadata.Ino]bool{
		1: true, metadata.SealedIno(3, metadata.DirPart, 0): true, metadata.SealedIno(3, metadata.DirPart, 9): true,
		metadata.SealedIno(3, 0, 9): false, metadata.SealedIno(4, metadata.DirPart, 0): false, metadata.RootIno: false, 0: false,
	} {
		if got := d.have(ino); got != want {
			t.Errorf("inode %v: %v, want %v", ino, got, want)
		}
	}
}
