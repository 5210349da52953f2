package source

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCloseOfRead: the descriptor is closed when its last read ends, and never used afterwards, since its number may
// belong to another file by then.
func TestCloseOfRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := OS{}.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f := file.(*osFile)
	if err := f.use(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		t.Errorf("the descriptor was closed during a read: %v", err)
	}
	if _, err := f.ReadAt(make([]byte, 4), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a read after Close: %v, want %v", err, fs.ErrClosed)
	}
	if _, err := f.Stat(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Stat after Close: %v, want %v", err, fs.ErrClosed)
	}
	if err := f.Close(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Close after Close: %v, want %v", err, fs.ErrClosed)
	}
	if err := f.done(); err != nil {
		t.Errorf("the end of the last read: %v", err)
	}
}
