package mount_test

import (
	"bytes"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestReadOfGrowingFile: a read during which the kernel learns of a larger size returns old or new data, never zeros
// for bytes that it has not read.
func TestReadOfGrowingFile(t *testing.T) {
	ways := []struct {
		what string
		grow func(t *testing.T, path string, p []byte)
	}{
		{"appended", func(t *testing.T, path string, p []byte) {
			w, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			check(t, err)
			_, err = w.Write(p)
			check(t, err)
			check(t, w.Close())
		}},
		{"written", func(t *testing.T, path string, p []byte) {
			w, err := os.OpenFile(path, os.O_RDWR, 0)
			check(t, err)
			_, err = w.WriteAt(p, grewFrom)
			check(t, err)
			check(t, w.Close())
		}},
	}
	j := newJob(t)
	for i, way := range ways {
		t.Run(way.what, func(t *testing.T) {
			for round := range 20 { // in some rounds the kernel drops the pages in time
				j.readGrowing(t, fmt.Sprint("f", i, "-", round), way.grow)
			}
		})
	}
}

// grewFrom is the size of the file before it grows.
const grewFrom = 100

// readGrowing lets mount 1 read a file that grows while the reply is delayed.
func (j *job) readGrowing(t *testing.T, name string, grow func(t *testing.T, path string, p []byte)) {
	t.Helper()
	had, added := bytes.Repeat([]byte("o"), grewFrom), bytes.Repeat([]byte("n"), grewFrom)
	check(t, os.WriteFile(j.scratch(0, name), had, 0o644))
	f, err := os.Open(j.scratch(1, name))
	check(t, err)
	defer f.Close()
	hang := make(chan struct{})
	goOn := sync.OnceFunc(func() { j.hang.Store(nil); close(hang) })
	t.Cleanup(goOn) // before the unmount
	hung := j.hung.Load()
	j.hang.Store(&hang)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer goOn()
	got := make([]byte, 4*grewFrom)
	wg.Go(func() {
		n, _ := f.ReadAt(got, 0)
		got = got[:n]
	})
	j.awaitHung(t, hung+1)
	grow(t, j.scratch(0, name), added)
	wg.Go(func() { _, _ = os.Stat(j.scratch(1, name)) }) // waits for the read once the kernel knows the new size
	awaitSize(t, f, 2*grewFrom)
	goOn()
	wg.Wait()
	if want := append(had, added...); !bytes.Equal(got, want) && !bytes.Equal(got, had) {
		t.Errorf("%s: read %d bytes, %d of them zeros", name, len(got), bytes.Count(got, []byte{0}))
	}
}

// awaitSize waits until the kernel shows size bytes for f; it causes no request.
func awaitSize(t *testing.T, f *os.File, size uint64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var st unix.Statx_t
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		check(t, unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_SIZE, &st))
		if st.Size == size {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the kernel believes in %d bytes, want %d", st.Size, size)
		}
	}
}
