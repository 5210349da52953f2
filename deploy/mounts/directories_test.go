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

// TestUsed: a directory is in use by who has it open and by who works in it, and a
// file in it uses it not.
func TestUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to look at other processes")
	}
	dir := t.TempDir()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO, &st); err != nil {
		t.Fatal(err)
	}
	d := directories{dev: fmt.Sprintf("%d:%d", st.Dev_major, st.Dev_minor), root: metadata.Ino(st.Ino)}
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

func wantUsed(t *testing.T, d directories, what string, want bool) {
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
