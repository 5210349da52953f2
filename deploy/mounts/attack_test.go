package mounts

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
)

const nobody = 65534

// attack replaces an object that belongs to the user.
type attack struct {
	name string
	do   func(object, secrets string) error
	want string // content read afterwards; "" means an error
}

const (
	theSecret = "only root may read this"
	userText  = "the user may read this"
)

// attacks are executed by root, so they include more than the user can do.
var attacks = []attack{
	{"nothing", func(string, string) error { return nil }, userText},
	{"another file of his", func(o, _ string) error {
		return errors.Join(os.Remove(o), os.WriteFile(o, []byte("another"), 0o600), os.Chown(o, nobody, nobody))
	}, "another"},
	{"a short file", func(o, _ string) error { return os.Truncate(o, 4) }, userText[:4]},
	{"a symbolic link", func(o, secrets string) error {
		return errors.Join(os.Remove(o), os.Symlink(filepath.Join(secrets, "file"), o))
	}, ""},
	{"a symbolic link to what all may read", func(o, _ string) error { return errors.Join(os.Remove(o), os.Symlink("/etc/passwd", o)) }, ""},
	{"a hard link", func(o, secrets string) error {
		return errors.Join(os.Remove(o), os.Link(filepath.Join(secrets, "file"), o))
	}, ""},
	{"root's file", func(o, _ string) error { return os.Chown(o, 0, 0) }, ""},
	{"a FIFO", func(o, _ string) error { return errors.Join(os.Remove(o), unix.Mkfifo(o, 0o666)) }, ""},
	{"a device", func(o, _ string) error {
		return errors.Join(os.Remove(o), unix.Mknod(o, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))), os.Chmod(o, 0o666))
	}, ""},
	{"a socket", func(o, _ string) error { return errors.Join(os.Remove(o), unix.Mknod(o, unix.S_IFSOCK|0o666, 0)) }, ""},
	{"a directory", func(o, _ string) error { return errors.Join(os.Remove(o), os.Mkdir(o, 0o777)) }, ""},
	{"nothing at all", func(o, _ string) error { return os.Remove(o) }, ""},
	{"a directory of objects that is a symbolic link", func(o, secrets string) error {
		return errors.Join(os.RemoveAll(filepath.Dir(o)), os.Symlink(filepath.Join(secrets, "dir"), filepath.Dir(o)))
	}, ""},
	{"a directory of objects that is root's", func(o, secrets string) error {
		return errors.Join(os.RemoveAll(filepath.Dir(o)), os.Rename(filepath.Join(secrets, "dir"), filepath.Dir(o)))
	}, ""},
}

// object returns the inode number that attack i targets; each has its own directory.
func object(i int) metadata.Ino { return metadata.SealedIno(1, 0, uint32(i)) }

// TestViewAttacked: a replaced object, before or after the first read of its file, gives no user, not even root, access
// to data that the user cannot read.
func TestViewAttacked(t *testing.T) {
	needViews(t)
	for i, a := range attacks {
		for _, known := range []bool{false, true} {
			attacked(t, i, a, known)
		}
	}
}

func attacked(t *testing.T, i int, a attack, known bool) {
	t.Helper()
	dir, err := os.MkdirTemp("", "attack") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, secrets := filepath.Join(dir, "store"), filepath.Join(dir, "secrets")
	at := filepath.Join(store, chunkstore.WholeDir, ObjectPath(object(i)))
	hidden := filepath.Join(secrets, "dir", filepath.Base(at))
	for _, err := range []error{
		os.Chmod(dir, 0o755), os.MkdirAll(filepath.Dir(at), 0o700), os.MkdirAll(filepath.Dir(hidden), 0o700),
		os.WriteFile(at, []byte(userText), 0o600), os.WriteFile(hidden, []byte(theSecret), 0o600), os.WriteFile(filepath.Join(secrets, "file"), []byte(theSecret), 0o600),
		own(store),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread has its own namespace
		view, err := viewOf(object(i), store)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(view)
		if known {
			if got, err := readAt(view); err != nil || got != userText {
				t.Errorf("before the attack: %q, %v", got, err)
			}
		}
		if err := a.do(at, secrets); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
		wantReads(t, view, a, known)
	}()
	<-done
}

// own changes the owner of a tree to the user.
func own(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, nobody, nobody))
	})
}

// viewOf makes a view of one file, in a mount namespace of this thread.
func viewOf(ino metadata.Ino, stores ...string) (int, error) {
	if err := ownNamespace(); err != nil {
		return -1, err
	}
	image, err := os.CreateTemp(stores[0], "image")
	if err != nil {
		return -1, err
	}
	defer image.Close()
	var tree bytes.Buffer
	w, err := NewTree(&tree, 1, metadata.Attr{Ino: metadata.SealedIno(1, metadata.DirPart, 0), Mode: syscall.S_IFDIR | 0o755, Nlink: 2})
	if err != nil {
		return -1, err
	}
	err = w.Add(Named{Name: "file", Attr: metadata.Attr{Ino: ino, Mode: syscall.S_IFREG | 0o644, Nlink: 1, UID: nobody, GID: nobody, Size: int64(len(userText))}})
	if err = errors.Join(err, w.End()); err != nil {
		return -1, err
	}
	size, _, err := writeImage(image, &tree)
	if err = errors.Join(err, image.Truncate(size)); err != nil {
		return -1, err
	}
	disk, err := loop(image)
	if err != nil {
		return -1, err
	}
	defer disk.Close()
	if err := unix.Mount(disk.Name(), imageLayer, "erofs", unix.MS_RDONLY, ""); err != nil {
		return -1, fmt.Errorf("erofs: %w", err)
	}
	v := View{Cover: Cover{UID: nobody, GID: nobody}, Stores: stores}
	return v.overlay()
}

// readAt reads the file in a view made by viewOf.
func readAt(view int) (string, error) {
	fd, err := unix.Openat(view, "file", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	b := make([]byte, 256)
	n, err := unix.Read(fd, b)
	return string(b[:max(n, 0)]), err
}

// wantReads reads after the attack, both as the user and as root.
func wantReads(t *testing.T, view int, a attack, known bool) {
	t.Helper()
	for _, uid := range []uint32{nobody, 0} {
		restore := func() error { return nil }
		if uid != 0 {
			var err error
			if restore, err = dropCredentials(uid, uid); err != nil {
				t.Error(err)
				return
			}
		}
		got, err := readAt(view)
		if e := restore(); e != nil {
			t.Error(e)
		}
		switch {
		case strings.Contains(got, theSecret):
			t.Errorf("%s, read before: %v: user %d reads what is root's", a.name, known, uid)
		case known && err == nil && got == userText: // still in the page cache
		case a.want != "" && (err != nil || got != a.want):
			t.Errorf("%s, read before: %v: user %d reads %q, %v, want %q", a.name, known, uid, got, err, a.want)
		case a.want == "" && err == nil:
			t.Errorf("%s, read before: %v: user %d reads %q, want an error", a.name, known, uid, got)
		}
	}
}

// TestViewStores: a view finds objects in every one of many store directories.
func TestViewStores(t *testing.T) {
	needViews(t)
	dir, err := os.MkdirTemp("", "stores") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var stores []string
	for i := range 64 { // the maximum for a site
		stores = append(stores, filepath.Join(dir, fmt.Sprint(i)))
		if err := os.MkdirAll(filepath.Join(stores[i], chunkstore.WholeDir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	at := filepath.Join(stores[63], chunkstore.WholeDir, ObjectPath(object(1)))
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Dir(at), 0o700), os.WriteFile(at, []byte(userText), 0o600), own(dir)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread has its own namespace
		view, err := viewOf(object(1), stores...)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(view)
		if got, err := readAt(view); err != nil || got != userText {
			t.Errorf("the object in the last of 64 store directories is read as %q, %v", got, err)
		}
	}()
	<-done
}

// TestViewImage: the image of a view is written to the user's store; a link in its place is not followed.
func TestViewImage(t *testing.T) {
	store, elsewhere := filepath.Join(t.TempDir(), "store"), t.TempDir()
	v := View{Stores: []string{store}}
	if err := os.Symlink(elsewhere, store); err != nil {
		t.Fatal(err)
	}
	if f, err := v.imageFile(); err == nil {
		_ = f.Close()
		t.Errorf("the image is in %s", elsewhere)
	}
	if err := errors.Join(os.Remove(store), os.Mkdir(store, 0o700)); err != nil {
		t.Fatal(err)
	}
	f, err := v.imageFile()
	if errors.Is(err, syscall.EOPNOTSUPP) {
		t.Skip("the filesystem of the temporary directory has no O_TMPFILE")
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
}

func needViews(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil || !strings.Contains(filesystems(t), "\terofs\n") {
		t.Skip("needs loop devices and EROFS")
	}
}

// filesystems returns the kernel's list of filesystem types.
func filesystems(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
