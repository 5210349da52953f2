package local

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ways lists the ways to read a file besides read(2).
var ways = map[string]func(f *os.File, size int) ([]byte, error){
	"mmap":     readMapped,
	"splice":   readSpliced,
	"sendfile": readSent,
	"O_DIRECT": readDirect,
}

// TestWays: files of datasets with and without a cover are read in every way, on the node that has them and on the
// other.
func TestWays(t *testing.T) {
	t.Parallel()
	needRoot(t)
	c := pitch(t, "2")
	want := map[string][]byte{}
	for set, size := range map[string]int{"small": 300_001, "large": 5<<20 + 1} {
		src := mkdir(t, filepath.Join(c.home, set))
		for i := range 6 {
			b := bytes.Repeat([]byte(fmt.Sprintf("%s %d, ", set, i)), size/6)[:size]
			write(t, filepath.Join(src, fmt.Sprint(i)), b)
			want[filepath.Join(set, fmt.Sprint(i))] = b
		}
		c.ok("stage-in", src, "--dir", c.dir)
	}
	eventually(t, "the small files are covered", func() bool {
		got := c.mounted(c.dir)
		return slices.Contains(got, c.node("0", "data", "small")) && slices.Contains(got, c.node("1", "data", "small"))
	})
	if slices.Contains(c.mounted(c.dir), c.node("0", "data", "large")) {
		t.Fatal("the large files are covered, too")
	}
	for how, read := range ways {
		for path, b := range want {
			for _, n := range []string{"0", "1"} {
				if got, err := readBy(read, c.node(n, "data", path), len(b)); err != nil || !bytes.Equal(got, b) {
					t.Errorf("%s of %s on node %s: %d bytes, %v, want %d", how, path, n, len(got), err, len(b))
				}
			}
		}
	}
	c.ok("down", "--dir", c.dir)
	c.gone(c.dir)
}

func readBy(read func(*os.File, int) ([]byte, error), path string, size int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return read(f, size)
}

// uninterrupted repeats a system call that a signal interrupted, as Go's scheduler sends them.
func uninterrupted[N int | int64](call func() (N, error)) (N, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

func readMapped(f *os.File, size int) ([]byte, error) {
	m, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Munmap(m) }()
	return bytes.Clone(m), nil
}

// readSpliced moves the bytes through a pipe.
func readSpliced(f *os.File, size int) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	defer w.Close()
	var got []byte
	p := make([]byte, 64<<10)
	for off := int64(0); ; {
		k, err := uninterrupted(func() (int64, error) { return unix.Splice(int(f.Fd()), &off, int(w.Fd()), nil, len(p), 0) })
		if err != nil || k == 0 {
			return got, err
		}
		for k > 0 {
			n, err := r.Read(p[:k])
			if err != nil {
				return got, err
			}
			got, k = append(got, p[:n]...), k-int64(n)
		}
	}
}

// readSent has the kernel send the file to a socket.
func readSent(f *os.File, size int) ([]byte, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fds[1])
	sent := make(chan error, 1) // one, for the reader's end
	go func() {
		var err error
		k := 1
		for off := int64(0); k > 0 && err == nil; {
			k, err = uninterrupted(func() (int, error) { return unix.Sendfile(fds[0], int(f.Fd()), &off, size) })
		}
		sent <- err
		_ = unix.Close(fds[0]) // the end that is read
	}()
	var got []byte
	p := make([]byte, 64<<10)
	for {
		n, err := uninterrupted(func() (int, error) { return unix.Read(fds[1], p) })
		if err != nil {
			return got, err
		}
		if n == 0 {
			return got, <-sent
		}
		got = append(got, p[:n]...)
	}
}

// readDirect reads past the page cache, into page-aligned memory.
func readDirect(f *os.File, size int) ([]byte, error) {
	d, err := os.OpenFile(f.Name(), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	const page, piece = 4096, 256 << 10
	b := make([]byte, piece+page)
	p := b[-int(uintptr(unsafe.Pointer(unsafe.SliceData(b))))&(page-1):][:piece]
	var got []byte
	for {
		n, err := uninterrupted(func() (int, error) { return unix.Pread(int(d.Fd()), p, int64(len(got))) })
		if n <= 0 || err != nil {
			return got, err
		}
		got = append(got, p[:n]...)
	}
}
