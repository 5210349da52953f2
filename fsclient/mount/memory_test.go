package mount_test

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/fsclient/mount"
)

// TestMemoryIsBounded: of many threads that read or write past the page cache, a bounded number is admitted
// concurrently; the others wait, and all succeed in the end.
func TestMemoryIsBounded(t *testing.T) {
	const threads, size = 350, 64 << 10
	for _, c := range []struct {
		what  string
		most  int64 // limit on concurrent requests that hold memory
		given int   // bytes that the buffer has before the call
		hang  func(*job) *atomic.Pointer[chan struct{}]
		do    func(f *os.File, p []byte, off int64) (int, error)
	}{
		{"reads", mount.MaxReads, 0, func(j *job) *atomic.Pointer[chan struct{}] { return &j.hang }, (*os.File).ReadAt},
		{"writes", mount.MaxWrites, size, func(j *job) *atomic.Pointer[chan struct{}] { return &j.hangWrites }, (*os.File).WriteAt},
	} {
		t.Run(c.what, func(t *testing.T) {
			j := newJob(t)
			want := pattern(size)
			var fs []*os.File // one file per thread: the kernel allows only one write per file at a time
			for i := range threads {
				name := j.scratch(0, fmt.Sprint("f", i))
				check(t, os.WriteFile(name, want, 0o644))
				f, err := os.OpenFile(name, os.O_RDWR|syscall.O_DIRECT, 0)
				check(t, err)
				fs = append(fs, f)
			}
			hang := make(chan struct{})
			goOn := sync.OnceFunc(func() { close(hang) })
			t.Cleanup(goOn) // before the unmount
			c.hang(j).Store(&hang)
			var wg sync.WaitGroup
			for i, f := range fs {
				wg.Go(func() {
					p := aligned(size)
					copy(p, want[:c.given])
					if n, err := c.do(f, p, 0); n != size || err != nil || !bytes.Equal(p, want) {
						t.Errorf("thread %d: %d bytes, %v", i, n, err)
					}
				})
			}
			j.awaitHung(t, c.most-1)             // one is waiting inside the library
			<-time.After(100 * time.Millisecond) // long enough for surplus requests to appear
			if n := j.hung.Load(); n > c.most {
				t.Errorf("%d requests are admitted, want at most %d", n, c.most)
			}
			goOn()
			wg.Wait()
			for i, f := range fs {
				check(t, f.Close())
				if got, err := os.ReadFile(j.scratch(1, fmt.Sprint("f", i))); err != nil || !bytes.Equal(got, want) {
					t.Errorf("file %d has %d bytes, not what was written: %v", i, len(got), err)
				}
			}
		})
	}
}

// TestEmptyReads: reads beyond the end, after which the FUSE library does not call Done, release their admission.
func TestEmptyReads(t *testing.T) {
	const size = 64 << 10
	j := newJob(t)
	w, err := os.OpenFile(j.scratch(0, "f"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(t, err)
	defer w.Close()
	f, err := os.Open(j.scratch(0, "f")) // opened beside an appender, so that every read is a request
	check(t, err)
	defer f.Close()
	for range 3 {
		if n, err := syscall.Pread(int(f.Fd()), make([]byte, size), 0); n != 0 || err != nil {
			t.Errorf("%d bytes of an empty file, %v", n, err)
		}
	}
	if n := j.mounts[0].ReadsUnderWay(); n != 0 {
		t.Errorf("%d reads are admitted after their answers, want none", n)
	}
}

// TestStuckWrites: the maximum number of writes to a node that does not answer does not block lookups, attributes and
// reads.
func TestStuckWrites(t *testing.T) {
	const threads, size = mount.DirectWrites, 4096
	j := newJob(t)
	check(t, os.WriteFile(j.scratch(0, "read"), pattern(size), 0o644))
	var fs []*os.File
	for i := range threads {
		f, err := os.OpenFile(j.scratch(0, fmt.Sprint("f", i)), os.O_WRONLY|os.O_CREATE|syscall.O_DIRECT, 0o644)
		check(t, err)
		fs = append(fs, f)
	}
	hang := make(chan struct{})
	goOn := sync.OnceFunc(func() { close(hang) })
	t.Cleanup(goOn) // before the unmount
	j.hangWrites.Store(&hang)
	var wg sync.WaitGroup
	for i, f := range fs {
		wg.Go(func() {
			if n, err := f.WriteAt(aligned(size), 0); n != size || err != nil {
				t.Errorf("thread %d: %d bytes, %v", i, n, err)
			}
		})
	}
	j.awaitHung(t, threads)
	late := time.AfterFunc(time.Minute, func() {
		t.Error("other requests wait for the stuck writes")
		goOn()
	})
	defer late.Stop()
	check(t, os.Mkdir(j.scratch(0, "dir"), 0o755))
	check(t, os.Rename(j.scratch(0, "dir"), j.scratch(0, "moved")))
	if got, err := os.ReadFile(j.scratch(0, "read")); err != nil || !bytes.Equal(got, pattern(size)) {
		t.Errorf("read %d bytes, %v, or other ones", len(got), err)
	}
	if names, err := os.ReadDir(j.scratch(0)); err != nil || len(names) != threads+2 {
		t.Errorf("listed %d names, %v", len(names), err)
	}
	goOn()
	wg.Wait()
	for _, f := range fs {
		check(t, f.Close())
	}
}
