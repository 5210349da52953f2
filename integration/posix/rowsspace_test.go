package posix

import (
	"bytes"
	"errors"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fallocate: every mode, with its effect there.
func fallocate(t *testing.T, c *camp, here, there string) {
	f, err := os.Create(here + "/f")
	check(t, err)
	defer f.Close()
	fd := int(f.Fd())
	want := pattern(3 << 20)
	_, err = f.Write(want)
	check(t, err)
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 1<<20-5, 1<<20))
	clear(want[1<<20-5 : 2<<20-5])
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE, 3<<20-10, 100))
	want = append(want[:3<<20-10], make([]byte, 100)...)
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 4<<20, 1<<20))
	check(t, f.Sync())
	wantFile(t, there+"/f", want)
	check(t, unix.Fallocate(fd, 0, 0, 4<<20))
	check(t, f.Sync())
	wantFile(t, there+"/f", append(want, make([]byte, 4<<20-len(want))...))
	wantErr(t, "COLLAPSE_RANGE", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 4096), syscall.EOPNOTSUPP)
	before := c.used(t)
	check(t, unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 8<<20, 8<<20))
	if grown := c.used(t) - before; grown < 8<<20 {
		t.Errorf("8 MiB were allocated, %d bytes are taken", grown)
	}
	wantErr(t, "more than there is", unix.Fallocate(fd, 0, 0, 1<<40), syscall.ENOSPC)
}

// seekHoles: data and holes are found on both nodes.
func seekHoles(t *testing.T, _ *camp, here, there string) {
	f, err := os.Create(here + "/f")
	check(t, err)
	for _, off := range []int64{1 << 20, 5 << 20} {
		_, err := f.WriteAt(pattern(1<<16), off)
		check(t, err)
	}
	check(t, f.Truncate(8<<20))
	check(t, f.Close())
	for _, dir := range []string{here, there} {
		fd, err := unix.Open(dir+"/f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		check(t, err)
		for _, tt := range []struct {
			off    int64
			whence int
			want   int64
		}{
			{0, unix.SEEK_DATA, 1 << 20}, {1 << 20, unix.SEEK_HOLE, 1<<20 + 1<<16}, {2 << 20, unix.SEEK_DATA, 5 << 20},
			{0, unix.SEEK_HOLE, 0}, {7 << 20, unix.SEEK_HOLE, 7 << 20},
		} {
			if got, err := unix.Seek(fd, tt.off, tt.whence); got != tt.want || err != nil {
				t.Errorf("seek from %d (%d) = %d, %v, want %d", tt.off, tt.whence, got, err, tt.want)
			}
		}
		_, err = unix.Seek(fd, 6<<20, unix.SEEK_DATA)
		wantErr(t, "data behind the last", err, syscall.ENXIO)
		_, err = unix.Seek(fd, 8<<20, unix.SEEK_HOLE)
		wantErr(t, "a hole behind the end", err, syscall.ENXIO)
		check(t, unix.Close(fd))
	}
}

// copyRange: data written there is copied here once its size is known here.
func copyRange(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(there+"/f", nil, 0o644))
	w, err := os.OpenFile(there+"/f", os.O_RDWR, 0)
	check(t, err)
	r, err := os.OpenFile(here+"/f", os.O_RDWR, 0)
	check(t, err)
	to, err := os.Create(here + "/g")
	check(t, err)
	defer func() { check(t, errors.Join(w.Close(), r.Close(), to.Close())) }()
	for size := 3; size < 3<<12; size <<= 4 {
		_, err = w.WriteAt(pattern(size), 0)
		check(t, err)
		check(t, w.Sync())
		if st, err := r.Stat(); err != nil || st.Size() != int64(size) {
			t.Fatalf("fstat = %v, %v, want %d", st, err, size)
		}
		var from, at int64
		n, err := unix.CopyFileRange(int(r.Fd()), &from, int(to.Fd()), &at, 1<<20, 0)
		if n != size || err != nil {
			t.Errorf("copy_file_range of %d = %d, %v", size, n, err)
		}
	}
	check(t, to.Sync())
	if got, err := os.ReadFile(there + "/g"); err != nil || !bytes.Equal(got, pattern(3<<8)) {
		t.Errorf("the copy has %d bytes, %v", len(got), err)
	}
}

// direct: O_DIRECT writes are visible there, and O_DIRECT reads see writes of the other kernel.
func direct(t *testing.T, _ *camp, here, there string) {
	const n = 1 << 20
	fd, err := unix.Open(here+"/f", unix.O_CREAT|unix.O_RDWR|unix.O_DIRECT|unix.O_SYNC|unix.O_CLOEXEC, 0o644)
	check(t, err)
	defer func() { check(t, unix.Close(fd)) }()
	b := aligned(n)
	for round := range 3 {
		copy(b, bytes.Repeat([]byte{byte('a' + round)}, n))
		got, err := unix.Pwrite(fd, b, int64(round)*n)
		if got != n || err != nil {
			t.Fatalf("write = %d, %v", got, err)
		}
		check(t, unix.Fsync(fd))
		other, err := os.ReadFile(there + "/f")
		if err != nil || len(other) != (round+1)*n || other[len(other)-1] != byte('a'+round) {
			t.Errorf("round %d: %d bytes, %v there", round, len(other), err)
		}
	}
	check(t, os.WriteFile(there+"/f", bytes.Repeat([]byte("z"), n), 0o644))
	if got, err := unix.Pread(fd, b, 0); got != n || err != nil || b[0] != 'z' || b[n-1] != 'z' {
		t.Errorf("read = %d, %v, %q", got, err, b[:1])
	}
}

// aligned returns a buffer aligned for O_DIRECT.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	skip := 4096 - int(uintptr(unsafe.Pointer(&b[0]))%4096)
	return b[skip : skip+n]
}

// blocks: a sparse file has few blocks on the node that stores it.
func blocks(t *testing.T, _ *camp, here, there string) {
	check(t, unix.Setxattr(here, "user.bivouac.layout", []byte("local"), 0))
	f, err := os.Create(here + "/sparse")
	check(t, err)
	_, err = f.WriteAt(pattern(4096), 64<<20)
	check(t, errors.Join(err, f.Close()))
	if st := stat(t, here+"/sparse"); st.Size != 64<<20+4096 || st.Blocks == 0 || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes in %d blocks", st.Size, st.Blocks)
	}
	if st := stat(t, there+"/sparse"); st.Blocks*512 < st.Size {
		t.Errorf("%d bytes in %d blocks, there", st.Size, st.Blocks)
	}
}
