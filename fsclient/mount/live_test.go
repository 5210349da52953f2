package mount_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s = %v, want %v", what, err, want)
	}
}

func wantFile(t *testing.T, path string, want []byte) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Errorf("%s has %d bytes, %v, want %d bytes; from %d on it has %x, want %x", path, len(got), err, len(want),
			at, got[at:min(at+16, len(got))], want[at:min(at+16, len(want))])
	}
}

func stat(t *testing.T, path string) (st syscall.Stat_t) {
	t.Helper()
	check(t, syscall.Lstat(path, &st))
	return st
}

// TestLive has one test for each row of the table of semantics about scratch. Paths a and b are the same directory on
// this node and on another.
func TestLive(t *testing.T) {
	j := newJob(t)
	tests := []struct {
		name string
		test func(t *testing.T, a, b string)
	}{
		{"CloseToOpen", testCloseToOpen},
		{"OpenFileSeesWrites", testOpenFileSeesWrites},
		{"ChangedThere", testChangedThere},
		{"WritesBeforeAttributes", testWritesBeforeAttributes},
		{"TimeSetBack", testTimeSetBack},
		{"Append", testAppend},
		{"AppendHere", testAppendHere},
		{"AppendMapped", testAppendMapped},
		{"Exclusive", testExclusive},
		{"CreateOrOpen", testCreateOrOpen},
		{"Tmpfile", testTmpfile},
		{"Names", testNames},
		{"LongNames", testLongNames},
		{"Attributes", testAttributes},
		{"Truncate", testTruncate},
		{"Holes", testHoles},
		{"MapShared", testMapShared},
		{"Rename", testRename},
		{"RenameDirectory", testRenameDirectory},
		{"Links", testLinks},
		{"Symlink", testSymlink},
		{"Fifo", testFifo},
		{"OpenUnlinked", testOpenUnlinked},
		{"UnlinkedThere", testUnlinkedThere},
		{"Directories", testDirectories},
		{"ReadDir", testReadDir},
		{"ReadDirWhileChanging", testReadDirWhileChanging},
		{"SeekDir", testSeekDir},
		{"Refusals", testRefusals},
		{"Fallocate", testFallocate},
		{"Seek", testSeek},
		{"HoleBehindShortData", testShortData},
		{"DirectIO", testDirectIO},
		{"SpecialFiles", testSpecialFiles},
		{"Times", testTimes},
		{"Xattrs", testXattrs},
		{"XattrKinds", testXattrKinds},
		{"SetIDs", testSetIDs},
		{"Fsync", testFsync},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			check(t, os.Mkdir(j.scratch(0, tt.name), 0o755))
			tt.test(t, j.scratch(0, tt.name), j.scratch(1, tt.name))
		})
	}
	for i, c := range j.clients {
		s := c.Stats()
		tick := time.NewTicker(5 * time.Millisecond)
		for end := time.Now().Add(10 * time.Second); s.Open != 0 && time.Now().Before(end); s = c.Stats() {
			<-tick.C // close does not wait for the release
		}
		tick.Stop()
		if s.Open != 0 {
			t.Errorf("client %d = %+v, want nothing open", i, s)
		}
		if s := j.mounts[i].Stats(); s.Panics != 0 {
			t.Errorf("mount %d = %+v", i, s)
		}
	}
}

func testCloseToOpen(t *testing.T, a, b string) {
	for i, size := range []int{0, 1, 4096, 1<<20 - 1, 5<<20 + 3, 10} {
		want := pattern(size)
		from, to := a, b
		if i%2 == 1 {
			from, to = b, a
		}
		check(t, os.WriteFile(from+"/f", want, 0o644))
		wantFile(t, to+"/f", want)
		wantFile(t, from+"/f", want)
		if st := stat(t, to+"/f"); st.Size != int64(size) {
			t.Errorf("size there = %d, want %d", st.Size, size)
		}
	}
}

// testOpenFileSeesWrites: a descriptor opened earlier also sees writes whose file was closed on the other node.
func testOpenFileSeesWrites(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", []byte("old old"), 0o644))
	f, err := os.Open(b + "/f")
	check(t, err)
	defer f.Close()
	p := make([]byte, 100)
	n, _ := f.ReadAt(p, 0)
	if string(p[:n]) != "old old" {
		t.Errorf("read %q", p[:n])
	}
	check(t, os.WriteFile(a+"/f", []byte("new and longer"), 0o644))
	n, _ = f.ReadAt(p, 0)
	if string(p[:n]) != "new and longer" {
		t.Errorf("read %q after it was written there", p[:n])
	}
}

// testAppend: with writers on both nodes, in this process and in others, a reader sees only whole lines.
func testAppend(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/log", nil, 0o644))
	var wg sync.WaitGroup
	for i := range 6 {
		path := []string{a, b}[i%2] + "/log"
		if i >= 4 {
			wg.Go(func() {
				c := exec.Command("sh", "-c", `i=0; while [ $i -lt 40 ]; do echo "line of $1" >> "$2"; i=$((i+1)); done`, "sh", fmt.Sprint(i), path)
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("%v: %s", err, out)
				}
			})
			continue
		}
		wg.Go(func() {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				t.Error(err)
				return
			}
			for range 40 {
				if _, err := fmt.Fprintf(f, "line of %d\n", i); err != nil {
					t.Error(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		wg.Wait()
	}()
	for running := true; running; {
		select {
		case <-over:
			running = false
		default:
		}
		got, err := os.ReadFile(b + "/log")
		if err != nil || len(got)%10 != 0 || bytes.IndexByte(got, 0) >= 0 {
			t.Fatalf("read %d bytes, %v, zeros at %d", len(got), err, bytes.IndexByte(got, 0))
		}
	}
	for _, dir := range []string{a, b} {
		got, err := os.ReadFile(dir + "/log")
		check(t, err)
		for i := range 6 {
			if n := bytes.Count(got, fmt.Appendf(nil, "line of %d\n", i)); n != 40 {
				t.Errorf("%d lines of %d, want 40", n, i)
			}
		}
	}
}

// testAppendHere: a descriptor can read what it appended, also after appends by others; O_APPEND may be set later;
// pwrite appends, as on Linux.
func testAppendHere(t *testing.T, a, b string) {
	f, err := os.OpenFile(a+"/f", os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	check(t, err)
	defer f.Close()
	g, err := os.OpenFile(b+"/f", os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	plain, err := os.OpenFile(a+"/f", os.O_RDWR, 0)
	check(t, err)
	defer plain.Close()
	for _, w := range []struct {
		f    *os.File
		text string
	}{{f, "one "}, {g, "two "}, {f, "three "}, {g, "four "}} {
		_, err := w.f.WriteString(w.text)
		check(t, err)
	}
	check(t, g.Close())
	_, err = unix.FcntlInt(plain.Fd(), unix.F_SETFL, unix.O_APPEND)
	check(t, err)
	_, err = plain.Write([]byte("five "))
	check(t, err)
	_, err = unix.Pwrite(int(f.Fd()), []byte("six"), 0)
	check(t, err)
	want := "one two three four five six"
	p := make([]byte, 100)
	for _, r := range []*os.File{f, plain} {
		if n, err := r.ReadAt(p, 0); !errors.Is(err, io.EOF) || string(p[:n]) != want {
			t.Errorf("read %q, %v", p[:n], err)
		}
	}
	if st := stat(t, b+"/f"); st.Size != int64(len(want)) {
		t.Errorf("size there = %d", st.Size)
	}
	check(t, f.Truncate(3))
	_, err = f.WriteString("!")
	check(t, err)
	check(t, f.Sync())
	wantFile(t, b+"/f", []byte("one!"))
	big := bytes.Repeat([]byte("0123456789abcdef"), 60_000)
	_, err = f.Write(big)
	check(t, err)
	check(t, f.Sync())
	wantFile(t, b+"/f", append([]byte("one!"), big...))
}

func testExclusive(t *testing.T, a, b string) {
	for round := range 10 {
		for what, make := range map[string]func(path string) error{
			"O_EXCL": func(path string) error {
				f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if err == nil {
					err = f.Close()
				}
				return err
			},
			"mkdir":   func(path string) error { return os.Mkdir(path, 0o700) },
			"symlink": func(path string) error { return os.Symlink("x", path) },
		} {
			var won atomic.Int32
			var wg sync.WaitGroup
			for i := range 8 {
				dir := a
				if i%2 == 1 {
					dir = b
				}
				wg.Go(func() {
					err := make(fmt.Sprintf("%s/%s%d", dir, what, round))
					if err == nil {
						won.Add(1)
					} else if !errors.Is(err, syscall.EEXIST) {
						t.Errorf("%s = %v", what, err)
					}
				})
			}
			wg.Wait()
			if won.Load() != 1 {
				t.Errorf("%s of one name succeeded %d times", what, won.Load())
			}
		}
	}
}

// testCreateOrOpen: without O_EXCL all callers open the same file.
func testCreateOrOpen(t *testing.T, a, b string) {
	for round := range 20 {
		var wg sync.WaitGroup
		for i := range 8 {
			dir := a
			if i%2 == 1 {
				dir = b
			}
			wg.Go(func() {
				f, err := os.OpenFile(fmt.Sprintf("%s/f%d", dir, round), os.O_CREATE|os.O_RDWR, 0o600)
				if err != nil {
					t.Error(err)
					return
				}
				_, err = f.WriteAt([]byte{byte('a' + i)}, int64(i))
				if err = errors.Join(err, f.Close()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		wantFile(t, fmt.Sprintf("%s/f%d", a, round), []byte("abcdefgh"))
	}
}

func testNames(t *testing.T, a, b string) {
	_, err := os.Stat(b + "/f")
	wantErr(t, "stat", err, syscall.ENOENT)
	check(t, os.WriteFile(a+"/f", nil, 0o644))
	stat(t, b+"/f")
	check(t, os.Remove(b+"/f"))
	_, err = os.Stat(a + "/f")
	wantErr(t, "stat", err, syscall.ENOENT)
	check(t, os.Mkdir(a+"/d", 0o755))
	check(t, os.WriteFile(b+"/d/f", []byte("x"), 0o644))
	wantErr(t, "rmdir of a full directory", syscall.Rmdir(a+"/d"), syscall.ENOTEMPTY)
	wantErr(t, "unlink of a directory", syscall.Unlink(a+"/d"), syscall.EISDIR)
	wantErr(t, "rmdir of a file", syscall.Rmdir(a+"/d/f"), syscall.ENOTDIR)
	check(t, os.RemoveAll(a+"/d"))
	_, err = os.Stat(b + "/d")
	wantErr(t, "stat", err, syscall.ENOENT)
}

func testLongNames(t *testing.T, a, b string) {
	name := string(bytes.Repeat([]byte{'n'}, 255))
	for _, n := range []string{name, "\xff\x01 \n\\", "-", ".x", "..."} {
		check(t, os.WriteFile(filepath.Join(a, n), []byte(n), 0o644))
		wantFile(t, b+"/"+n, []byte(n))
	}
	wantErr(t, "create", os.WriteFile(a+"/"+name+"n", nil, 0o644), syscall.ENAMETOOLONG)
	_, err := os.Stat(a + "/" + name + "n")
	wantErr(t, "stat", err, syscall.ENAMETOOLONG)
	wantErr(t, "mkdir", os.Mkdir(a+"/"+name+"n", 0o755), syscall.ENAMETOOLONG)
}

func testAttributes(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", []byte("12345"), 0o640))
	was := stat(t, b+"/f")
	if was.Mode != syscall.S_IFREG|0o640 || was.Nlink != 1 || was.Uid != 0 || was.Size != 5 || was.Blocks == 0 {
		t.Errorf("stat = %+v", was)
	}
	check(t, os.Chmod(b+"/f", 0o4755))
	check(t, os.Chown(b+"/f", 1234, 4321))
	// chown by root clears setuid, as the kernel requires.
	when := time.Unix(1e9, 123456789)
	check(t, os.Chtimes(b+"/f", time.Unix(-5, 7), when))
	st := stat(t, a+"/f")
	if st.Mode != syscall.S_IFREG|0o755 || st.Uid != 1234 || st.Gid != 4321 {
		t.Errorf("stat = mode %o, owner %d:%d", st.Mode, st.Uid, st.Gid)
	}
	if st.Mtim.Nano() != when.UnixNano() || st.Atim.Nano() != time.Unix(-5, 7).UnixNano() {
		t.Errorf("times = %v, %v", st.Atim, st.Mtim)
	}
	if st.Ctim.Nano() <= was.Ctim.Nano() {
		t.Errorf("ctime did not move: %v, %v", was.Ctim, st.Ctim)
	}
	// A time set on an open file after a write is kept.
	f, err := os.Create(a + "/g")
	check(t, err)
	_, err = f.WriteString("data")
	check(t, err)
	check(t, os.Chtimes(a+"/g", when, when))
	check(t, f.Close())
	if st := stat(t, b+"/g"); st.Mtim.Nano() != when.UnixNano() || st.Size != 4 {
		t.Errorf("mtime = %v, size %d", st.Mtim, st.Size)
	}
	check(t, os.Mkdir(a+"/d", 0o755))
	check(t, syscall.Chmod(a+"/d", 0o2775))
	check(t, os.Chown(a+"/d", 0, 77))
	for i := range 4 { // some of them have another home
		check(t, os.Mkdir(fmt.Sprint(b, "/d/", i), 0o755))
		if st := stat(t, fmt.Sprint(a, "/d/", i)); st.Gid != 77 || st.Mode&syscall.S_ISGID == 0 {
			t.Errorf("directory in a setgid directory: gid %d, mode %o", st.Gid, st.Mode)
		}
	}
}

func testTruncate(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", pattern(5<<20), 0o644))
	for _, size := range []int64{3<<20 + 1, 4097, 1} {
		check(t, os.Truncate(b+"/f", size))
		check(t, os.Truncate(b+"/f", 5<<20))
		want := append(pattern(int(size)), make([]byte, 5<<20-size)...)
		wantFile(t, a+"/f", want)
		wantFile(t, b+"/f", want)
	}
	f, err := os.OpenFile(a+"/f", os.O_RDWR|os.O_TRUNC, 0)
	check(t, err)
	_, err = f.WriteAt([]byte("tail"), 2<<20)
	check(t, err)
	check(t, f.Truncate(2<<20+2))
	check(t, f.Close())
	wantFile(t, b+"/f", append(make([]byte, 2<<20), "ta"...))
}

func testHoles(t *testing.T, a, b string) {
	f, err := os.Create(a + "/f")
	check(t, err)
	_, err = f.WriteAt([]byte("x"), 7<<20)
	check(t, err)
	check(t, f.Close())
	wantFile(t, b+"/f", append(make([]byte, 7<<20), 'x'))
	check(t, os.Truncate(b+"/f", 1<<40))
	g, err := os.Open(a + "/f")
	check(t, err)
	defer g.Close()
	p := bytes.Repeat([]byte{1}, 100)
	if n, err := g.ReadAt(p, 1<<39); n != 100 || err != nil || !bytes.Equal(p, make([]byte, 100)) {
		t.Errorf("ReadAt in a hole = %d, %v", n, err)
	}
}

// testMapShared: see writeMapped.
func testMapShared(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", make([]byte, 3<<20), 0o644))
	check(t, writeMapped(a+"/f", 0, pattern(3<<20)))
	wantFile(t, b+"/f", pattern(3<<20))
}

const mapHelper = "BIVOUAC_TEST_MAP" // the file for the helper to write to, from the offset in mapHelper_AT

// writeMapped writes p at off through a shared mapping of another process. Neither a page fault nor munmap may wait
// for this process, which serves the mount: Go's scheduler cannot see that a thread waits in a fault, and munmap holds
// the lock of the address space while the pages are written.
func writeMapped(path string, off int, p []byte) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(exe, "-test.run=^TestMapHelper$")
	c.Env = append(os.Environ(), mapHelper+"="+path, mapHelper+"_AT="+strconv.Itoa(off))
	c.Stdin = bytes.NewReader(p)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func TestMapHelper(t *testing.T) {
	path := os.Getenv(mapHelper)
	if path == "" {
		t.Skip("it helps other tests")
	}
	off, err := strconv.Atoi(os.Getenv(mapHelper + "_AT"))
	check(t, err)
	p, err := io.ReadAll(os.Stdin)
	check(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	check(t, err)
	m, err := unix.Mmap(int(f.Fd()), 0, off+len(p), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	copy(m[off:], p)
	check(t, unix.Munmap(m))
	check(t, f.Close())
}

// testAppendMapped: a reader can map a file that is being appended to. The mapping is not accessed; see testMapShared.
func testAppendMapped(t *testing.T, a, b string) {
	f, err := os.OpenFile(a+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(t, err)
	defer f.Close()
	_, err = f.Write(pattern(4096))
	check(t, err)
	for _, dir := range []string{a, b} {
		r, err := os.Open(dir + "/log")
		check(t, err)
		m, err := unix.Mmap(int(r.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
		check(t, err)
		check(t, unix.Munmap(m))
		check(t, r.Close())
	}
}

// testTmpfile creates many links of a file that was created without a name, while it is written.
func testTmpfile(t *testing.T, a, b string) {
	fd, err := unix.Open(a, unix.O_TMPFILE|unix.O_WRONLY, 0o600)
	check(t, err)
	f := os.NewFile(uintptr(fd), "tmp")
	defer f.Close()
	for i := range 4 {
		_, err := f.Write(pattern(1000))
		check(t, err)
		dir := fmt.Sprint("/d", i)
		check(t, os.Mkdir(a+dir, 0o755))
		check(t, unix.Linkat(fd, "", unix.AT_FDCWD, a+dir+"/f", unix.AT_EMPTY_PATH))
		if st := stat(t, b+dir+"/f"); int(st.Nlink) != i+1 || st.Size != int64(1000*(i+1)) {
			t.Errorf("%+v after %d links", st, i+1)
		}
	}
}
