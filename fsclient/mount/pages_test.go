package mount_test

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// pagesOf returns the number of cached pages of an open file. With passthrough these are the object's, not the mount's.
func pagesOf(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var st unix.Cachestat_t
	err := unix.Cachestat(uint(f.Fd()), &unix.CachestatRange{}, &st, 0)
	if errors.Is(err, syscall.ENOSYS) {
		t.Skip("this kernel cannot tell what it has in its page cache (Linux 6.5)")
	}
	check(t, err)
	return st.Cache
}

// object opens the object of file i on the node that has it whole.
func (j *job) object(t *testing.T, i int) *os.File {
	t.Helper()
	o, err := j.data[i%len(j.data)].Open(metadata.Ino(stat(t, j.file(0, i)).Ino))
	check(t, err)
	t.Cleanup(func() { check(t, o.Close()) })
	return o
}

// readPages reads file i through mount 0, and returns the pages then cached for the mount and for the object.
func (j *job) readPages(t *testing.T, i int) (mine, objects uint64) {
	t.Helper()
	o := j.object(t, i)
	check(t, o.Sync()) // dirty pages are not dropped
	check(t, unix.Fadvise(int(o.Fd()), 0, 0, unix.FADV_DONTNEED))
	wantFile(t, j.file(0, i), sealedContent(i))
	f, err := os.Open(j.file(0, i))
	check(t, err)
	defer f.Close()
	return pagesOf(t, f), pagesOf(t, o)
}

// TestPages: a file with passthrough is cached once, as its object. Other files are cached as the mount's, and their
// objects on their owner for other nodes.
func TestPages(t *testing.T) {
	const here, there = 3, 4 // on node 0, and on another node
	size := uint64(os.Getpagesize())
	want := (uint64(len(sealedContent(here))) + size - 1) / size
	t.Run("passthrough", func(t *testing.T) {
		needPassthrough(t)
		j := startJob(t, &job{})
		if mine, objects := j.readPages(t, here); mine != 0 || objects != want {
			t.Errorf("%d pages of the mount and %d of the object, want 0 and %d", mine, objects, want)
		}
		if mine, _ := j.readPages(t, there); mine != want {
			t.Errorf("%d pages of a file of another node, want %d", mine, want)
		}
	})
	bothWays(t, func(t *testing.T, j *job) {
		for _, i := range []int{here, there} {
			if mine, objects := j.readPages(t, i); mine != want || objects != want {
				t.Errorf("file %d: %d pages of the mount and %d of the object, want %d each", i, mine, objects, want)
			}
		}
	})
}

// testWritesBeforeAttributes: a change of attributes here, whose reply has the time of writes on the other node, leaves
// no stale pages.
func testWritesBeforeAttributes(t *testing.T, a, b string) {
	const size = 5000
	check(t, os.WriteFile(a+"/f", make([]byte, size), 0o644))
	f, err := os.OpenFile(b+"/f", os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	changes := []struct {
		what string
		do   func() error
	}{
		{"fchmod", func() error { return f.Chmod(0o600) }},
		{"fchown", func() error { return f.Chown(1234, 4321) }},
		{"ftruncate to its size", func() error { return f.Truncate(size) }},
		{"futimens", func() error { return unix.Futimes(int(f.Fd()), []unix.Timeval{{Sec: 5}, {Sec: 1e9}}) }},
		{"chmod", func() error { return os.Chmod(b+"/f", 0o644) }},
	}
	got := make([]byte, size)
	for i, c := range changes {
		_, err := f.ReadAt(got, 0) // so that its pages are cached here
		check(t, err)
		want := bytes.Repeat([]byte{byte(i + 1)}, size)
		check(t, os.WriteFile(a+"/f", want, 0o644))
		check(t, c.do())
		if n, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got[:n], want) {
			t.Errorf("after %s: %d bytes that begin with %d, %v, want %d with %d", c.what, n, got[0], err, size, i+1)
		}
		var here, there syscall.Stat_t
		check(t, syscall.Fstat(int(f.Fd()), &here))
		check(t, syscall.Lstat(a+"/f", &there))
		if here.Mtim != there.Mtim {
			t.Errorf("after %s: written at %v, there at %v", c.what, here.Mtim, there.Mtim)
		}
	}
}

// testTimeSetBack: processes that have the file open here see writes by other nodes even if these restored size and
// st_mtime; stat returns that st_mtime.
func testTimeSetBack(t *testing.T, a, b string) {
	const size = 5000
	old := time.Unix(1e9, 123456789)
	check(t, os.WriteFile(a+"/f", make([]byte, size), 0o644))
	check(t, os.Chtimes(a+"/f", old, old))
	f, err := os.Open(b + "/f")
	check(t, err)
	defer f.Close()
	write := func(p []byte, then func(w *os.File) error) {
		w, err := os.OpenFile(a+"/f", os.O_WRONLY, 0)
		check(t, err)
		_, err = w.WriteAt(p, 0)
		check(t, err)
		check(t, then(w))
		check(t, w.Close())
	}
	back := func(w *os.File) error {
		tv := unix.NsecToTimeval(old.UnixNano())
		return unix.Futimes(int(w.Fd()), []unix.Timeval{tv, tv})
	}
	exactly := func(*os.File) error { return os.Chtimes(a+"/f", old, old) }
	ways := []struct {
		what  string
		then  func(w *os.File) error
		after func() error
		look  bool // stat the file before the read
	}{
		{"on the descriptor", exactly, nil, false},
		{"after the close", func(*os.File) error { return nil }, func() error { return exactly(nil) }, false},
		{"and looked at", exactly, nil, true},
		{"with another mode", func(w *os.File) error { return errors.Join(w.Chmod(0o600), exactly(w)) }, nil, false},
		{"twice", func(w *os.File) error { return errors.Join(back(w), exactly(w)) }, nil, false},
		{"again", exactly, nil, true},
	}
	got := make([]byte, size)
	for i, way := range ways {
		_, err := f.ReadAt(got, 0) // so that its pages are cached here
		check(t, err)
		want := bytes.Repeat([]byte{byte(i + 1)}, size)
		write(want, way.then)
		if way.after != nil {
			check(t, way.after())
		}
		if way.look {
			wantTime(t, way.what, f, old)
		}
		if n, err := f.ReadAt(got, 0); err != nil || !bytes.Equal(got[:n], want) {
			t.Errorf("set back %s: %d bytes that begin with %d, %v, want %d with %d", way.what, n, got[0], err, size, i+1)
		}
		wantTime(t, way.what, f, old)
	}
}

func wantTime(t *testing.T, what string, f *os.File, want time.Time) {
	t.Helper()
	fi, err := f.Stat()
	check(t, err)
	if !fi.ModTime().Equal(want) {
		t.Errorf("set back %s: written at %v, want %v", what, fi.ModTime(), want)
	}
}

// TestPagesAreCached: an unchanged file is read once while it is open, whatever its timestamps.
func TestPagesAreCached(t *testing.T) {
	j := newJob(t)
	old := time.Unix(1e9, 0)
	check(t, os.WriteFile(j.scratch(1, "f"), make([]byte, 5000), 0o644))
	check(t, os.Chtimes(j.scratch(1, "f"), old, old))
	f, err := os.Open(j.scratch(0, "f"))
	check(t, err)
	defer f.Close()
	reads := func() int64 { return j.mounts[0].Stats().Calls["read"] }
	got := make([]byte, 5000)
	_, err = f.ReadAt(got, 0)
	check(t, err)
	before := reads()
	for range 3 {
		_, err = f.ReadAt(got, 0)
		check(t, err)
		_, err = f.Stat()
		check(t, err)
	}
	if n := reads() - before; n != 0 {
		t.Errorf("%d reads of cached pages, want none", n)
	}
	check(t, os.Chmod(j.scratch(1, "f"), 0o600)) // may indicate a write
	_, err = f.ReadAt(got, 0)
	check(t, err)
	before = reads()
	for range 3 {
		_, err = f.ReadAt(got, 0)
		check(t, err)
	}
	if n := reads() - before; n != 0 {
		t.Errorf("after a change of its attributes: %d reads of cached pages, want none", n)
	}
}
