package mount_test

import (
	"os"
	"sync/atomic"
	"syscall"
	"testing"
)

// TestSyncErrorOfLargeWrite: a large O_SYNC write, which the kernel splits into parts, returns an error that a disk
// reports once, after a part other than the first.
func TestSyncErrorOfLargeWrite(t *testing.T) {
	const part = 512 << 10
	j := newJob(t)
	for name, flags := range map[string]int{"written": os.O_WRONLY, "appended": os.O_WRONLY | os.O_APPEND, "kept": os.O_RDWR} {
		t.Run(name, func(t *testing.T) {
			f, err := os.OpenFile(j.scratch(0, name), os.O_CREATE|os.O_SYNC|flags, 0o644)
			check(t, err)
			var syncs atomic.Int64
			fails := func() error {
				if syncs.Add(1) == 2 {
					return syscall.EIO
				}
				return nil
			}
			j.onSync.Store(&fails)
			defer j.onSync.Store(nil)
			n, err := syscall.Write(int(f.Fd()), pattern(3*part))
			if err == nil && n != part {
				t.Fatalf("wrote %d bytes, want %d, which are durable", n, part)
			}
			if err == nil {
				_, err = syscall.Write(int(f.Fd()), pattern(3 * part)[part:])
			}
			wantErr(t, "a write of which a part may be lost", err, syscall.EIO)
			n, err = syscall.Write(int(f.Fd()), pattern(part))
			if n != part || err != nil {
				t.Errorf("the next one: %d bytes, %v", n, err)
			}
			check(t, f.Close())
		})
	}
}
