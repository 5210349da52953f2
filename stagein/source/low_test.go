package source

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
)

// ioWitness notes the priority of the thread that reads.
type ioWitness struct {
	File
	saw *uintptr
}

func (w ioWitness) ReadAt(p []byte, _ int64) (int, error) {
	*w.saw = ioPriority()
	return len(p) / 2, syscall.ESTALE
}

// TestBackground: reads have the lowest priority, and the thread its own again.
func TestBackground(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := ioPriority()
	if own == ioLowest || own>>ioClassShift == ioIdle {
		t.Skip("this process has no higher priority than what is read in the background")
	}
	var saw uintptr
	n, err := Background(ioWitness{saw: &saw}).ReadAt(make([]byte, 10), 0)
	if n != 5 || !errors.Is(err, syscall.ESTALE) {
		t.Errorf("ReadAt = %d, %v, want what the file said", n, err)
	}
	if saw != ioLowest {
		t.Errorf("the read has priority %#x, want %#x", saw, uintptr(ioLowest))
	}
	if now := ioPriority(); now != own {
		t.Errorf("after it the thread has %#x, want %#x", now, own)
	}
}
