package mounts

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestAttach: a mount is attached only to the directory with the expected inode number, and only once.
func TestAttach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	done := make(chan error, 1) // one result
	go func() {
		runtime.LockOSThread() // never unlocked: the thread has its own namespace
		done <- attachAll(t)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func attachAll(t *testing.T) error {
	if err := ownNamespace(); err != nil {
		return err
	}
	set := filepath.Join(privateDir, "set")
	data, err := unix.Open(privateDir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err = errors.Join(err, os.Mkdir(set, 0o755)); err != nil {
		return err
	}
	p := &point{data: data, name: "set"}
	defer p.close()
	root := inodeOf(t, set)
	m, err := newMount("tmpfs", [][2]string{{"size", "64k"}})
	if err != nil {
		return err
	}
	defer unix.Close(m)
	if err := p.mount(m, root+1); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("over another directory: %v, want ESTALE", err)
	}
	if err := p.mount(m, root); err != nil {
		return err
	}
	if inodeOf(t, set) == root {
		t.Error("the mount is not seen")
	}
	again, err := newMount("tmpfs", [][2]string{{"size", "64k"}})
	if err != nil {
		return err
	}
	defer unix.Close(again)
	if err := p.mount(again, root); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("over a mount: %v, want EXDEV", err)
	}
	return nil
}

func inodeOf(t *testing.T, path string) metadata.Ino {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Error(err)
	}
	return metadata.Ino(st.Ino)
}

// TestAwaitMounted distinguishes a helper's success from its error and from its exit.
func TestAwaitMounted(t *testing.T) {
	await := func(said string) error {
		t.Helper()
		near, far, err := socketpair(unix.SOCK_STREAM, "talk")
		if err != nil {
			t.Fatal(err)
		}
		conn, err := Conn(near)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := far.WriteString(said); err != nil {
			t.Fatal(err)
		}
		_ = far.Close() // everything was sent
		root, err := AwaitMounted(conn)
		if root != nil {
			t.Error("a root that was not sent")
		}
		return err
	}
	if err := await("ok\n"); err != nil {
		t.Errorf("a view that is mounted: %v", err)
	}
	if err := await("no loop device\n"); !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "no loop device") {
		t.Errorf("a view that failed: %v", err)
	}
	if err := await(""); !errors.Is(err, io.EOF) {
		t.Errorf("a helper that has ended: %v, want EOF", err)
	}
}

// TestTellRoot: a helper receives the inode number of the root, and the end of the connection.
func TestTellRoot(t *testing.T) {
	near, far, err := socketpair(unix.SOCK_STREAM, "talk")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	conn, err := Conn(near)
	if err != nil {
		t.Fatal(err)
	}
	if err := TellRoot(conn, dirIno(0)); err != nil {
		t.Fatal(err)
	}
	if root, err := hearRoot(far); err != nil || root != dirIno(0) {
		t.Errorf("heard %v, %v, want %v", root, err, dirIno(0))
	}
	_ = conn.Close() // nothing more is sent
	if _, err := hearRoot(far); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, want EOF", err)
	}
}
