package mount_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// testFallocate compares a file with a slice after each mode.
func testFallocate(t *testing.T, a, b string) {
	want := pattern(5<<20 + 17)
	f, err := os.Create(a + "/f")
	check(t, err)
	defer f.Close()
	_, err = f.Write(want)
	check(t, err)
	fd := int(f.Fd())
	grow := func(to int) { want = append(want, make([]byte, max(to-len(want), 0))...) }
	for _, tt := range []struct {
		mode   uint32
		off, n int
		apply  func(off, n int)
	}{
		{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, 1<<20 - 100, 2 << 20, func(off, n int) { clear(want[off : off+n]) }},
		{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, 5 << 20, 9 << 20, func(off, n int) { clear(want[off:]) }},
		{unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE, 5, 100, func(off, n int) { clear(want[off : off+n]) }},
		{unix.FALLOC_FL_KEEP_SIZE, 4 << 20, 8 << 20, func(int, int) {}},
		{0, 100, 1000, func(int, int) {}},
		{0, 6 << 20, 1 << 20, func(off, n int) { grow(off + n) }},
		{unix.FALLOC_FL_ZERO_RANGE, 7<<20 - 10, 20, func(off, n int) { grow(off + n) }},
	} {
		what := fmt.Sprintf("fallocate(%#x, %d, %d)", tt.mode, tt.off, tt.n)
		if err := unix.Fallocate(fd, tt.mode, int64(tt.off), int64(tt.n)); err != nil {
			t.Fatalf("%s = %v", what, err)
		}
		tt.apply(tt.off, tt.n)
		if st := stat(t, a+"/f"); st.Size != int64(len(want)) {
			t.Errorf("after %s: %d bytes here, want %d", what, st.Size, len(want))
		}
		check(t, f.Sync())
		if st := stat(t, b+"/f"); st.Size != int64(len(want)) {
			t.Errorf("after %s: %d bytes there, want %d", what, st.Size, len(want))
		}
		got := make([]byte, len(want)+1)
		if n, err := f.ReadAt(got, 0); err != io.EOF || !bytes.Equal(got[:n], want) {
			t.Errorf("after %s: other bytes here (%d), %v", what, n, err)
		}
		wantFile(t, b+"/f", want)
	}
	wantErr(t, "fallocate past the end of numbers", unix.Fallocate(fd, 0, 1<<62, 1<<62), syscall.EFBIG)
	r, err := os.Open(b + "/f")
	check(t, err)
	defer r.Close()
	wantErr(t, "fallocate of what is open for reading", unix.Fallocate(int(r.Fd()), 0, 0, 1), syscall.EBADF)
	// A truncate frees space beyond the end.
	check(t, f.Truncate(10))
	check(t, f.Truncate(10<<20))
	wantFile(t, b+"/f", append(bytes.Clone(want[:10]), make([]byte, 10<<20-10)...))
}

// testSeek finds the data of a sparse file from both nodes.
func testSeek(t *testing.T, a, b string) {
	f, err := os.Create(a + "/f")
	check(t, err)
	data := [][2]int64{{2 << 20, 2<<20 + 4096}, {3 << 20, 6<<20 + 8192}, {20<<20 + 4096, 20<<20 + 12288}}
	for _, d := range data {
		_, err := f.WriteAt(pattern(int(d[1]-d[0])), d[0])
		check(t, err)
	}
	const size = 30 << 20
	check(t, f.Truncate(size))
	for _, dir := range []string{a, b} {
		r, err := os.Open(dir + "/f")
		check(t, err)
		var got [][2]int64
		for at := int64(0); ; {
			from, err := unix.Seek(int(r.Fd()), at, unix.SEEK_DATA)
			if err == syscall.ENXIO {
				break
			}
			check(t, err)
			at, err = unix.Seek(int(r.Fd()), from, unix.SEEK_HOLE)
			check(t, err)
			got = append(got, [2]int64{from, at})
		}
		if fmt.Sprint(got) != fmt.Sprint(data) {
			t.Errorf("data by seeking = %v, want %v", got, data)
		}
		if at, err := unix.Seek(int(r.Fd()), size-1, unix.SEEK_HOLE); at != size-1 || err != nil {
			t.Errorf("hole at the end = %d, %v", at, err)
		}
		_, behind := unix.Seek(int(r.Fd()), size, unix.SEEK_HOLE)
		wantErr(t, "seek behind the end", behind, syscall.ENXIO)
		check(t, r.Close())
	}
	check(t, f.Close())
}

// direct returns memory for O_DIRECT.
func direct(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	skip := page - int(uintptr(unsafe.Pointer(&b[0]))%page)
	return b[skip : skip+n]
}

// testDirectIO writes and reads past the page cache, on both nodes.
func testDirectIO(t *testing.T, a, b string) {
	want := pattern(3 << 20)
	buf := direct(len(want))
	copy(buf, want)
	fd, err := unix.Open(a+"/f", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT, 0o644)
	check(t, err)
	defer unix.Close(fd)
	n, err := unix.Pwrite(fd, buf, 0)
	if n != len(want) || err != nil {
		t.Fatalf("write = %d, %v", n, err)
	}
	rd, err := unix.Open(b+"/f", unix.O_RDWR|unix.O_DIRECT, 0)
	check(t, err)
	defer unix.Close(rd)
	clear(buf)
	check(t, unix.Fsync(fd)) // the other node sees the write once the home knows the size
	if n, err := unix.Pread(rd, buf, 0); n != len(want) || err != nil || !bytes.Equal(buf, want) {
		t.Errorf("read there = %d, %v", n, err)
	}
	copy(buf, "changed there")
	_, err = unix.Pwrite(rd, buf[:4096], 1<<20)
	check(t, err)
	clear(buf)
	if _, err := unix.Pread(fd, buf[:4096], 1<<20); err != nil || string(buf[:13]) != "changed there" {
		t.Errorf("read here = %.13q, %v", buf, err)
	}
}

// testSpecialFiles: a socket of one node is only a name on the other; a device keeps its number.
func testSpecialFiles(t *testing.T, a, b string) {
	dir, err := unix.Open(a, unix.O_PATH|unix.O_DIRECTORY, 0)
	check(t, err)
	defer unix.Close(dir)
	name := fmt.Sprintf("/proc/self/fd/%d/s", dir) // a path short enough for a socket
	l, err := net.Listen("unix", name)
	check(t, err)
	defer l.Close()
	c, err := net.Dial("unix", name)
	check(t, err)
	check(t, c.Close())
	if st := stat(t, b+"/s"); st.Mode&syscall.S_IFMT != syscall.S_IFSOCK {
		t.Errorf("mode of a socket there = %o", st.Mode)
	}
	if _, err := net.Dial("unix", b+"/s"); err == nil {
		t.Error("a socket there connects here")
	}
	for what, tt := range map[string]struct {
		mode uint32
		dev  uint64
	}{"c": {syscall.S_IFCHR | 0o600, unix.Mkdev(1, 3)}, "b": {syscall.S_IFBLK | 0o600, unix.Mkdev(7, 300)}} {
		check(t, unix.Mknod(a+"/"+what, tt.mode, int(tt.dev)))
		if st := stat(t, b+"/"+what); st.Mode != tt.mode || st.Rdev != tt.dev {
			t.Errorf("device there: mode %o, number %d, want %o, %d", st.Mode, st.Rdev, tt.mode, tt.dev)
		}
		check(t, os.Remove(b+"/"+what))
	}
}

// testTimes sets timestamps to the nanosecond, only one of them, and to the current time.
func testTimes(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", []byte("x"), 0o644))
	check(t, os.Symlink("f", a+"/s"))
	check(t, os.Mkdir(a+"/d", 0o755))
	past, before := unix.Timespec{Sec: 1_000_000_007, Nsec: 123_456_789}, unix.Timespec{Sec: -5, Nsec: 999_999_999}
	omit, now := unix.Timespec{Nsec: unix.UTIME_OMIT}, unix.Timespec{Nsec: unix.UTIME_NOW}
	for _, name := range []string{"/f", "/s", "/d"} {
		set := func(at, mt unix.Timespec) syscall.Stat_t {
			t.Helper()
			check(t, unix.UtimesNanoAt(unix.AT_FDCWD, a+name, []unix.Timespec{at, mt}, unix.AT_SYMLINK_NOFOLLOW))
			return stat(t, b+name)
		}
		if st := set(past, before); st.Atim != syscall.Timespec(past) || st.Mtim != syscall.Timespec(before) {
			t.Errorf("times of %s = %v, %v, want %v, %v", name, st.Atim, st.Mtim, past, before)
		}
		if st := set(omit, past); st.Atim != syscall.Timespec(past) || st.Mtim != syscall.Timespec(past) {
			t.Errorf("after one of %s: %v, %v", name, st.Atim, st.Mtim)
		}
		start := time.Now()
		st := set(now, omit)
		if at := time.Unix(st.Atim.Unix()); at.Before(start.Add(-time.Second)) || st.Mtim != syscall.Timespec(past) {
			t.Errorf("after now of %s: %v, %v", name, st.Atim, st.Mtim)
		}
		if st.Ctim.Nano() < start.Add(-time.Second).UnixNano() {
			t.Errorf("ctime of %s = %v, want now", name, st.Ctim)
		}
	}
	before1 := stat(t, b+"/f").Atim
	wantFile(t, b+"/f", []byte("x"))
	if st := stat(t, a+"/f"); st.Atim != before1 {
		t.Errorf("reading changed atime from %v to %v", before1, st.Atim)
	}
}

// TestBlocks: du shows the allocated space of a sparse file with a local layout.
func TestBlocks(t *testing.T) {
	j := newJob(t)
	d := j.scratch(0, "d")
	check(t, os.Mkdir(d, 0o755))
	check(t, unix.Setxattr(d, "user.bivouac.layout", []byte("local"), 0))
	f, err := os.Create(d + "/f")
	check(t, err)
	check(t, f.Truncate(1<<30))
	_, err = f.WriteAt(pattern(1<<16), 1<<29)
	check(t, err)
	check(t, f.Close())
	if st := stat(t, d+"/f"); st.Size != 1<<30 || st.Blocks*512 != 1<<16 {
		t.Errorf("a file of 1 GiB with 64 KiB has %d bytes in %d blocks", st.Size, st.Blocks)
	}
	check(t, os.WriteFile(j.scratch(0, "g"), pattern(10_000), 0o644))
	if st := stat(t, j.scratch(1, "g")); st.Blocks != 20 {
		t.Errorf("a striped file of 10,000 bytes has %d blocks, want those of its size", st.Blocks)
	}
}

// TestSpaceComesBack: holes and truncates free space, and after the last unlink no node has data of the file.
func TestSpaceComesBack(t *testing.T) {
	j := newJob(t)
	used := func() (n, objects int64) {
		for _, d := range j.data {
			sp, err := d.Space(ctx)
			check(t, err)
			n, objects = n+sp.Used, objects+sp.Objects
		}
		return n, objects
	}
	start, objects := used()
	path := j.scratch(0, "f")
	f, err := os.Create(path)
	check(t, err)
	_, err = f.Write(pattern(6 << 20))
	check(t, err)
	check(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 6<<20, 6<<20))
	if n, _ := used(); n-start != 12<<20 {
		t.Errorf("%d bytes are used, want 12 MiB", n-start)
	}
	check(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 3<<20))
	if n, _ := used(); n-start != 9<<20 {
		t.Errorf("%d bytes are used after a hole of 3 MiB, want 9 MiB", n-start)
	}
	check(t, f.Truncate(5<<20))
	if n, _ := used(); n-start != 2<<20 {
		t.Errorf("%d bytes are used after a cut to 5 MiB, want 2 MiB", n-start)
	}
	check(t, unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 20<<20, 3<<20))
	check(t, os.Remove(filepath.Join(j.dirs[1], "scratch", "f")))
	check(t, f.Close())
	for end := time.Now().Add(20 * time.Second); ; {
		n, o := used()
		if n == start && o == objects {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d bytes in %d objects are left after the unlink", n-start, o-objects)
		}
		_, err := os.Stat(j.dirs[0])
		check(t, err)
	}
}

// testShortData: holes are aligned as on a disk.
func testShortData(t *testing.T, a, _ string) {
	f, err := os.Create(a + "/f")
	check(t, err)
	defer func() { check(t, f.Close()) }()
	check(t, f.Truncate(100<<10))
	for _, off := range []int64{0, 40 << 10, 100<<10 - 128} {
		_, err = f.WriteAt([]byte("short"), off)
		check(t, err)
	}
	for off, want := range map[int64]int64{0: 4 << 10, 40<<10 + 2: 44 << 10, 100<<10 - 128: 100 << 10} {
		if at, err := unix.Seek(int(f.Fd()), off, unix.SEEK_HOLE); at != want || err != nil {
			t.Errorf("hole behind %d = %d, %v, want %d", off, at, err, want)
		}
	}
}
