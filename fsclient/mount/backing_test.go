package mount_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// needPassthrough skips if the kernel does not support passthrough.
func needPassthrough(t *testing.T) {
	t.Helper()
	needFUSE(t)
	var u unix.Utsname
	check(t, unix.Uname(&u))
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if major < 6 || major == 6 && minor < 9 {
		t.Skipf("Linux %d.%d has no FUSE passthrough, which came with 6.9", major, minor)
	}
}

// file returns the path of file i of the dataset on mount m.
func (j *job) file(m, i int) string {
	return filepath.Join(j.dirs[m], "data", "set", "train", fmt.Sprintf("%03d", i))
}

// localTo reports whether file i of the dataset is whole on node id.
func localTo(j *job, id metadata.NodeID, i int) bool { return i%len(j.data) == int(id) }

// TestPassthrough: the kernel reads files that are whole on this node without a request; all others are read through
// the mount.
func TestPassthrough(t *testing.T) {
	needPassthrough(t)
	j := startJob(t, &job{})
	local := int64(0)
	for i := range sealedFiles {
		wantFile(t, j.file(0, i), sealedContent(i))
		if localTo(j, 0, i) {
			local++
		}
	}
	s := j.mounts[0].Stats()
	if want := int64(sealedFiles) - local; s.Passthrough != local || s.Calls["read"] < want || s.Calls["read"] > 2*want {
		t.Errorf("stats = %+v, want %d opens by passthrough and reads of the %d others only", s, local, want)
	}
	wantFile(t, filepath.Join(j.dirs[0], "data", "set", "big"), pattern(sealedBig))
	for range 2 { // again, with the cached backing ids
		wantFile(t, j.file(0, 0), sealedContent(0))
	}
	if got := j.mounts[0].Stats().Passthrough; got != local+2 {
		t.Errorf("passthrough = %d, want %d", got, local+2)
	}
}

// TestPassthroughMap: mappings, direct reads and concurrent opens.
func TestPassthroughMap(t *testing.T) {
	needPassthrough(t)
	j := startJob(t, &job{})
	f, err := os.Open(j.file(0, 0))
	check(t, err)
	defer f.Close()
	want := sealedContent(0)
	m, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
	check(t, err)
	if !bytes.Equal(m, want) {
		t.Error("the mapping has other bytes than the file")
	}
	check(t, unix.Munmap(m))
	d, err := os.OpenFile(j.file(0, 0), os.O_RDONLY|unix.O_DIRECT, 0)
	check(t, err)
	defer d.Close()
	p := aligned(4096)
	if n, err := d.Read(p); err != nil || !bytes.Equal(p[:n], want) {
		t.Errorf("direct read = %d, %v, want %d bytes", n, err, len(want))
	}
	if got := j.mounts[0].Stats().Passthrough; got != 2 {
		t.Errorf("passthrough = %d, want 2", got)
	}
}

// aligned returns n page-aligned bytes.
func aligned(n int) []byte {
	b := make([]byte, 2*n)
	off := int(-uintptr(unsafe.Pointer(&b[0])) & uintptr(n-1))
	return b[off : off+n]
}

// TestPassthroughFew: with few backing ids, many concurrent readers get the right bytes.
func TestPassthroughFew(t *testing.T) {
	needPassthrough(t)
	j := startJob(t, &job{backings: 3})
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for k := range 100 {
				i := (k*7 + w) % sealedFiles
				if got, err := os.ReadFile(j.file(0, i)); err != nil || !bytes.Equal(got, sealedContent(i)) {
					t.Errorf("file %d = %d bytes, %v", i, len(got), err)
				}
			}
		})
	}
	wg.Wait()
	if s := j.mounts[0].Stats(); s.Passthrough == 0 || s.Panics != 0 {
		t.Errorf("stats = %+v", s)
	}
}

// refusing refuses every other file with ENOMEM, or all files.
type refusing struct {
	always error
	asked  atomic.Int64
}

func (r *refusing) Back(*os.File) (int32, error) {
	r.asked.Add(1)
	if r.always != nil {
		return 0, r.always
	}
	return 0, syscall.ENOMEM
}

func (r *refusing) Drop(int32) error { return errors.New("no id was given") }

// TestPassthroughRefused: refused files are read through the mount. No more files are registered after a permanent
// error; after ENOMEM they are.
func TestPassthroughRefused(t *testing.T) {
	needPassthrough(t)
	for _, tt := range []struct {
		err  error
		once bool
	}{{syscall.EPERM, true}, {nil, false}} {
		r := &refusing{always: tt.err}
		j := startJob(t, &job{backer: r})
		for range 2 {
			for i := range sealedFiles {
				wantFile(t, j.file(0, i), sealedContent(i))
			}
		}
		if s := j.mounts[0].Stats(); s.Passthrough != 0 {
			t.Errorf("%v: stats = %+v", tt.err, s)
		}
		if n := r.asked.Load(); (n == 1) != tt.once {
			t.Errorf("%v: asked %d times, want once: %t", tt.err, n, tt.once)
		}
	}
}

// TestForget: removed objects are unregistered, open ones when they are closed, and open files can be read to the end.
func TestForget(t *testing.T) {
	needPassthrough(t)
	j := startJob(t, &job{})
	var open []*os.File
	var inos []metadata.Ino
	for i := range sealedFiles {
		if localTo(j, 0, i) {
			f, err := os.Open(j.file(0, i))
			check(t, err)
			defer f.Close()
			var st syscall.Stat_t
			check(t, syscall.Fstat(int(f.Fd()), &st))
			open, inos = append(open, f), append(inos, metadata.Ino(st.Ino))
		}
	}
	check(t, open[0].Close())
	j.mounts[0].Forget(inos)
	before := j.mounts[0].Stats().Passthrough
	wantFile(t, open[1].Name(), sealedContent(len(j.data))) // still open: with the same id
	wantFile(t, open[0].Name(), sealedContent(0))           // registered anew
	if got := j.mounts[0].Stats().Passthrough - before; got != 2 {
		t.Errorf("%d opens by passthrough, want 2", got)
	}
	b := make([]byte, len(sealedContent(len(j.data))))
	if n, err := open[1].ReadAt(b, 0); n != len(b) || !bytes.Equal(b, sealedContent(len(j.data))) {
		t.Errorf("the open file: %d bytes, %v", n, err)
	}
}
