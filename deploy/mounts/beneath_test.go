package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBeneath: entries below a directory are found by openat2, and in the same way without it; targets of links and of
// mounts are not.
func TestBeneath(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	top := t.TempDir()
	at := func(path string) string { return filepath.Join(top, path) }
	for _, err := range []error{
		os.MkdirAll(at("dir/a/b"), 0o700), os.WriteFile(at("dir/a/b/f"), nil, 0o600), os.WriteFile(at("outside"), nil, 0o600),
		os.Symlink("a", at("dir/link")), os.Symlink("f", at("dir/a/b/link")), os.Symlink(at("dir/a/b/f"), at("dir/absolute")),
		os.Mkdir(at("dir/mounted"), 0o700), unix.Mount("tmpfs", at("dir/mounted"), "tmpfs", 0, "size=64k"),
		os.WriteFile(at("dir/mounted/f"), nil, 0o600), os.WriteFile(at("dir/bound"), nil, 0o600), unix.Mount(at("outside"), at("dir/bound"), "", unix.MS_BIND, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	defer func() {
		if err := errors.Join(unix.Unmount(at("dir/mounted"), unix.MNT_DETACH), unix.Unmount(at("dir/bound"), unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	}()
	dir, err := os.Open(at("dir"))
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	for _, tt := range []struct {
		path string
		want error // nil means any but EXDEV
		ok   bool
	}{
		{"a", nil, true}, {"a/b", nil, true}, {"a/b/f", nil, true}, {"a/b/link", nil, true}, {"link", nil, true}, {"absolute", nil, true},
		{"link/b", nil, false}, {"link/b/f", nil, false}, {"a/b/f/g", nil, false}, {"none", syscall.ENOENT, false}, {"a/none/f", syscall.ENOENT, false},
		{"mounted", syscall.EXDEV, false}, {"mounted/f", syscall.EXDEV, false}, {"bound", syscall.EXDEV, false},
		{"../outside", syscall.EXDEV, false}, {"a/../../outside", syscall.EXDEV, false}, {at("outside"), syscall.EXDEV, false}, {"", nil, false},
	} {
		h, err := Beneath(int(dir.Fd()), tt.path)
		fd, werr := walkBeneath(int(dir.Fd()), tt.path)
		if (err == nil) != tt.ok || (werr == nil) != tt.ok || tt.want != nil && (!errors.Is(err, tt.want) || !errors.Is(werr, tt.want)) {
			t.Errorf("%q: %v, and step by step %v; want %v", tt.path, err, werr, tt.want)
			continue
		}
		if !tt.ok {
			continue
		}
		var is, one, other unix.Stat_t
		err = errors.Join(unix.Lstat(at("dir/"+tt.path), &is), unix.Fstat(int(h.Fd()), &one), unix.Fstat(fd, &other), h.Close(), unix.Close(fd))
		if err != nil || one.Ino != is.Ino || other.Ino != is.Ino {
			t.Errorf("%q: inodes %d and %d, %v, want %d", tt.path, one.Ino, other.Ino, err, is.Ino)
		}
	}
}
