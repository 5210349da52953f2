package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDropCredentials: the thread that makes a view can open only what its user can, until its credentials are
// restored.
func TestDropCredentials(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change credentials")
	}
	dir, err := os.MkdirTemp("", "credentials") // t.TempDir is closed to other users
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ours, theirs := filepath.Join(dir, "ours"), filepath.Join(dir, "theirs")
	for _, err := range []error{os.Chmod(dir, 0o755), os.WriteFile(ours, nil, 0o600), os.WriteFile(theirs, nil, 0o600), os.Chown(theirs, nobody, nobody)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread has other groups
		restore, err := dropCredentials(nobody, nobody)
		if err != nil {
			t.Error(err)
			return
		}
		opens(t, "as the user, the user's", theirs, nil)
		opens(t, "as the user, root's", ours, syscall.EACCES)
		if err := restore(); err != nil {
			t.Error(err)
		}
		opens(t, "afterwards, root's", ours, nil)
	}()
	<-done
}

func opens(t *testing.T, what, path string, want error) {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // nothing was read
	}
	if !errors.Is(err, want) {
		t.Errorf("open of a file %s = %v, want %v", what, err, want)
	}
}
