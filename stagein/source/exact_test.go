package source

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInexact: concurrent direct reads that are refused, as a disk does for unaligned ones, fall back to the page
// cache.
func TestInexact(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 2000)
	name := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
	file, err := OS{}.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	f := file.(*osFile)
	for range 50 {
		if _, err := unix.FcntlInt(uintptr(f.fd), unix.F_SETFL, unix.O_DIRECT); err != nil {
			t.Skipf("the file system has no O_DIRECT: %v", err)
		}
		f.exact.Store(true)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				p := make([]byte, 1000)
				if n, err := f.ReadAt(p, int64(i)+1); n != len(p) || err != nil || !bytes.Equal(p, data[i+1:i+1001]) {
					t.Errorf("read %d at %d: %d, %v", len(p), i+1, n, err)
				}
			})
		}
		wg.Wait()
	}
}
