package source

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ioWitness records the priority of the reading thread.
type ioWitness struct {
	File
	saw *uintptr
}

func (w ioWitness) ReadAt(p []byte, _ int64) (int, error) {
	*w.saw = ioPriority()
	return len(p) / 2, syscall.ESTALE
}

// TestBackground: reads have the lowest priority, and the thread gets its own back.
func TestBackground(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := ioPriority()
	if own == ioLowest || own>>ioClassShift == ioIdle {
		t.Skip("this process already has the lowest priority")
	}
	var saw uintptr
	n, err := Background(ioWitness{saw: &saw}).ReadAt(make([]byte, 10), 0)
	if n != 5 || !errors.Is(err, syscall.ESTALE) {
		t.Errorf("ReadAt = %d, %v, want the result of the file", n, err)
	}
	if saw != ioLowest {
		t.Errorf("the read has priority %#x, want %#x", saw, uintptr(ioLowest))
	}
	if now := ioPriority(); now != own {
		t.Errorf("after it the thread has %#x, want %#x", now, own)
	}
}

type wrapped struct{ File }

func (w wrapped) Unwrap() File { return w.File }

// TestBackgroundWithoutDisk: no priority is set for a file that is not on a disk.
func TestBackgroundWithoutDisk(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Skip("/dev/shm is no tmpfs")
	}
	dir, err := os.MkdirTemp("/dev/shm", "low")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OS{}.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, low := Background(wrapped{f}).(lowFile); low {
		t.Error("a file in memory is read with a low priority")
	}
	if _, low := Background(wrapped{ioWitness{}}).(lowFile); !low {
		t.Error("an unknown file is read without a low priority")
	}
}
