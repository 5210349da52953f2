package mount_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// tempFile returns a file without a name.
func tempFile() (*os.File, error) {
	f, err := os.CreateTemp("", "kept")
	if err == nil {
		err = os.Remove(f.Name())
	}
	return f, err
}

// readers returns the ways to read the first size bytes of a file that was just opened. All but the first use the
// kernel's pages without asking whether they are valid.
func readers() map[string]func(f *os.File, size int) ([]byte, error) {
	return map[string]func(f *os.File, size int) ([]byte, error){
		"read": func(f *os.File, size int) ([]byte, error) {
			p := make([]byte, size)
			n, err := io.ReadFull(f, p)
			return p[:n], err
		},
		"mmap": func(f *os.File, size int) ([]byte, error) {
			m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
			if err != nil {
				return nil, err
			}
			out, err := tempFile()
			if err != nil {
				return nil, err
			}
			defer out.Close()
			n, err := unix.Pwrite(int(out.Fd()), m, 0) // a fault in Go code would stop the garbage collector
			if err != nil || n != size {
				return nil, err
			}
			p := make([]byte, size)
			if _, err := out.ReadAt(p, 0); err != nil {
				return nil, err
			}
			return p, unix.Munmap(m)
		},
		"sendfile": func(f *os.File, size int) ([]byte, error) {
			out, err := tempFile()
			if err != nil {
				return nil, err
			}
			defer out.Close()
			for sent := 0; sent < size; {
				n, err := unix.Sendfile(int(out.Fd()), int(f.Fd()), nil, size-sent)
				if err != nil || n == 0 {
					return nil, err
				}
				sent += n
			}
			p := make([]byte, size)
			_, err = out.ReadAt(p, 0)
			return p, err
		},
	}
}

// wantRead opens a file and reads it in one of these ways.
func wantRead(t *testing.T, how, path string, want []byte) {
	t.Helper()
	f, err := os.Open(path)
	check(t, err)
	defer f.Close()
	if got, err := readers()[how](f, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s: %d bytes that begin with %x, %v, want %d with %x", how, len(got), got[:min(4, len(got))], err, len(want), want[:4])
	}
}

// TestPagesAreKept: the pages of an unchanged file are read once for all processes that open it.
func TestPagesAreKept(t *testing.T) {
	j := newJob(t)
	want := bytes.Repeat([]byte{7}, 200_000)
	check(t, os.WriteFile(j.scratch(1, "f"), want, 0o644))
	wantRead(t, "read", j.scratch(0, "f"), want)
	before := j.mounts[0].Stats().Calls["read"]
	for how := range readers() {
		wantRead(t, how, j.scratch(0, "f"), want)
	}
	if n := j.mounts[0].Stats().Calls["read"] - before; n != 0 {
		t.Errorf("%d reads by later opens, want none", n)
	}
}

// rewriting returns a file of size bytes, open on mount 0 to read and write, whose pages are cached, and its content.
func (j *job) rewriting(t *testing.T, size int) (*os.File, []byte) {
	t.Helper()
	want := bytes.Repeat([]byte{7}, size)
	check(t, os.WriteFile(j.scratch(0, "f"), want, 0o644))
	f, err := os.OpenFile(j.scratch(0, "f"), os.O_RDWR, 0)
	check(t, err)
	t.Cleanup(func() { _ = f.Close() }) // at the end of the test
	p := make([]byte, size)
	_, err = f.ReadAt(p, 0)
	check(t, err)
	return f, want
}

// TestPagesAreKeptOverOwnWrites: a process that reads and writes one file, as a database does, finds earlier reads in
// the page cache, also after an fsync.
func TestPagesAreKeptOverOwnWrites(t *testing.T) {
	j := newJob(t)
	const size = 200_000
	f, want := j.rewriting(t, size)
	p := make([]byte, size)
	before := j.mounts[0].Stats().Calls["read"]
	for i := range 10 {
		want[i*10_000] = byte(i)
		_, err := f.WriteAt([]byte{byte(i)}, int64(i*10_000))
		check(t, err)
		if i == 7 {
			check(t, f.Sync())
		}
		if _, err := f.ReadAt(p, 0); err != nil || !bytes.Equal(p, want) {
			t.Fatalf("write %d: the reader has other bytes, %v", i, err)
		}
	}
	if n := j.mounts[0].Stats().Calls["read"] - before; n != 0 {
		t.Errorf("%d reads after own writes, want none", n)
	}
}

// TestOtherWritesAreSeenBetweenOwn: the next read of a process shows changes made between two of its writes: writes by
// another node, also with the time set back or just before an own write, and local writes that bypass the page cache.
func TestOtherWritesAreSeenBetweenOwn(t *testing.T) {
	const at = 100_000
	old := time.Unix(1e9, 123456789)
	for what, write := range map[string]func(j *job, p []byte) error{
		"there": func(j *job, p []byte) error { return writeAt(j.scratch(1, "f"), os.O_WRONLY, p, at) },
		"there, with the time set back": func(j *job, p []byte) error {
			return errors.Join(writeAt(j.scratch(1, "f"), os.O_WRONLY, p, at), os.Chtimes(j.scratch(1, "f"), old, old))
		},
		"by a descriptor for writing": func(j *job, p []byte) error { return writeAt(j.scratch(0, "f"), os.O_WRONLY, p, at) },
		"by O_DIRECT":                 func(j *job, p []byte) error { return writeAt(j.scratch(0, "f"), os.O_RDWR|unix.O_DIRECT, p, at) },
	} {
		t.Run(what, func(t *testing.T) {
			j := newJob(t)
			f, want := j.rewriting(t, 200_000)
			p := make([]byte, len(want))
			for i := range 6 {
				want[0], want[at] = byte(i), byte(10+i)
				own := func() {
					_, err := f.WriteAt(want[:1], 0)
					check(t, err)
				}
				if i%2 == 0 {
					own()
				}
				check(t, write(j, want[at:at+1]))
				if i%3 == 0 {
					own()
				}
				if i%2 != 0 && i%3 != 0 {
					want[0] = p[0]
				}
				if _, err := f.ReadAt(p, 0); err != nil || !bytes.Equal(p, want) {
					t.Fatalf("round %d: byte 0 is %d, byte %d is %d, %v; want %d, %d", i, p[0], at, p[at], err, want[0], want[at])
				}
			}
		})
	}
}

// writeAt opens a file and writes p to it.
func writeAt(path string, flags int, p []byte, off int64) error {
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(p, off)
	return errors.Join(err, f.Close())
}

// TestRestartedHome: bytes unknown to every home, because their writer was killed along with the home, or before the
// home asked the writer, are visible to the next open once the home has restarted, even if the file is still open.
func TestRestartedHome(t *testing.T) {
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint("open ", open), func(t *testing.T) { testRestartedHome(t, open) })
	}
}

func testRestartedHome(t *testing.T, open bool) {
	j := newJob(t)
	want := bytes.Repeat([]byte{7}, 200_000)
	check(t, os.WriteFile(j.scratch(1, "f"), want, 0o644))
	a, err := j.clients[1].Lookup(t.Context(), metadata.RootIno, "f")
	check(t, err)
	ino := a.Ino
	attr, err := j.clients[1].Getattr(t.Context(), ino)
	check(t, err)
	owner := j.view.Map.Order(ino, attr.Layout)[0]
	home := j.meta[ino.Home()].Files
	write := func() {
		want[5000]++
		check(t, j.data[owner].WriteAt(t.Context(), attr.Object(), want[5000:5001], 5000))
	}
	answer := func() {
		r := j.clients[0].Recall(metadata.Recall{Home: ino.Home()})
		home.Add(metadata.Holder{Run: r.Run}, r.Files)
		home.Answered(0)
	}
	if open {
		f, err := os.Open(j.scratch(0, "f"))
		check(t, err)
		defer f.Close()
	}
	for how := range readers() {
		wantRead(t, how, j.scratch(0, "f"), want)
		if !open {
			j.awaitClosed(t, ino)
		}
		write()
		home.Recover(0)
		for range 2 {
			if !open { // else it learns of the restart when it is asked
				wantRead(t, how, j.scratch(0, "f"), want)
			}
			write()
		}
		answer()
		wantRead(t, how, j.scratch(0, "f"), want)
	}
}

// awaitClosed waits until mount 0 has released ino, since close(2) does not wait for that.
func (j *job) awaitClosed(t *testing.T, ino metadata.Ino) {
	t.Helper()
	q := metadata.Recall{Home: ino.Home(), Only: []metadata.Ino{ino}}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); len(j.clients[0].Recall(q).Files) > 0; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("inode %v is still open", ino)
		}
	}
}

// testChangedThere: every change of a file on a is visible on b from the next open, in every way of reading, although
// the pages are kept while nothing changes.
func testChangedThere(t *testing.T, a, b string) {
	const size = 20_000
	old := time.Unix(1e9, 123456789)
	want := make([]byte, size)
	write := func(c byte) error {
		f, err := os.OpenFile(a+"/f", os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		for i := 5000; i < 15_000; i++ {
			want[i] = c
		}
		_, err = f.WriteAt(want[5000:15_000], 5000)
		return err
	}
	changes := []struct {
		what string
		do   func(f *os.File) error
	}{
		{"write", func(*os.File) error { return write(1) }},
		{"write with the time set back", func(*os.File) error {
			if err := write(2); err != nil {
				return err
			}
			return os.Chtimes(a+"/f", old, old)
		}},
		{"another with the same time", func(*os.File) error {
			if err := write(3); err != nil {
				return err
			}
			return os.Chtimes(a+"/f", old, old)
		}},
		{"hole", func(f *os.File) error {
			clear(want[4096:8192])
			return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 4096)
		}},
		{"truncate and write", func(f *os.File) error {
			if err := f.Truncate(1); err != nil {
				return err
			}
			return write(4)
		}},
		{"mapping", func(*os.File) error {
			want[9000] = 5
			return writeMapped(a+"/f", 9000, want[9000:9001])
		}},
		{"append", func(*os.File) error {
			f, err := os.OpenFile(a+"/f", os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			more := bytes.Repeat([]byte{6}, 3000)
			want = append(want, more...)
			_, err = f.Write(more)
			return err
		}},
	}
	check(t, os.WriteFile(a+"/f", want, 0o644))
	for _, c := range changes {
		for how := range readers() {
			wantRead(t, how, b+"/f", want) // so that its pages are cached here
			f, err := os.OpenFile(a+"/f", os.O_RDWR, 0)
			check(t, err)
			check(t, c.do(f))
			check(t, f.Close())
			switch c.what { // the truncate leaves only part of the old content
			case "truncate and write":
				want = append(append(want[:1:1], make([]byte, 4999)...), want[5000:15_000]...)
			}
			var st syscall.Stat_t
			check(t, syscall.Lstat(a+"/f", &st))
			if st.Size != int64(len(want)) {
				t.Fatalf("after %s: %d bytes, want %d", c.what, st.Size, len(want))
			}
			wantRead(t, how, b+"/f", want)
		}
		check(t, os.WriteFile(a+"/f", make([]byte, size), 0o644))
		want = make([]byte, size)
	}
}
