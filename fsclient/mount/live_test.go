package mount_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
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
		t.Errorf("%s has %d bytes, %v, want %d bytes", path, len(got), err, len(want))
	}
}

func stat(t *testing.T, path string) (st syscall.Stat_t) {
	t.Helper()
	check(t, syscall.Lstat(path, &st))
	return st
}

// TestLive has one test for each row of the table in the package comment that
// concerns the live realm. a and b are the same directory here and there.
func TestLive(t *testing.T) {
	j := newJob(t)
	tests := []struct {
		name string
		test func(t *testing.T, a, b string)
	}{
		{"CloseToOpen", testCloseToOpen},
		{"OpenFileSeesWrites", testOpenFileSeesWrites},
		{"Append", testAppend},
		{"Exclusive", testExclusive},
		{"CreateOrOpen", testCreateOrOpen},
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
		if s := c.Stats(); s.Unreaped != 0 || s.Open != 0 {
			t.Errorf("client %d = %+v, want nothing open and nothing unreaped", i, s)
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

// testOpenFileSeesWrites: a descriptor that was open before sees what was
// closed there, too.
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

func testAppend(t *testing.T, a, b string) {
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			f, err := os.OpenFile(a+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
			if err != nil {
				t.Error(err)
				return
			}
			for range 50 {
				if _, err := fmt.Fprintf(f, "line of %d\n", i); err != nil {
					t.Error(err)
				}
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	f, err := os.OpenFile(b+"/log", os.O_APPEND|os.O_WRONLY, 0)
	check(t, err)
	_, err = f.WriteString("line of b\n")
	check(t, err)
	check(t, f.Close())
	got, err := os.ReadFile(a + "/log")
	check(t, err)
	if n := bytes.Count(got, []byte("\n")); n != 201 || len(got) != 201*10 {
		t.Errorf("%d lines in %d bytes, want 201 of 10", n, len(got))
	}
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

// testCreateOrOpen: without O_EXCL all get the one file.
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
	// chown by root keeps setuid away from others: the kernel has cleared it.
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
	for i := range 4 { // some of them are homed elsewhere
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

func testMapShared(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", make([]byte, 3<<20), 0o644))
	f, err := os.OpenFile(a+"/f", os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 3<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check(t, err)
	copy(m, pattern(3<<20))
	check(t, unix.Msync(m, unix.MS_SYNC))
	check(t, unix.Munmap(m))
	check(t, f.Sync())
	wantFile(t, b+"/f", pattern(3<<20))
}

func testRename(t *testing.T, a, b string) {
	for i := range 6 { // the directories are homed on all nodes
		d := fmt.Sprint("/d", i)
		check(t, os.Mkdir(a+d, 0o755))
		check(t, os.WriteFile(a+"/f", []byte(d), 0o644))
		check(t, os.WriteFile(a+d+"/over", pattern(2<<20), 0o644))
		check(t, os.Rename(b+"/f", b+d+"/f"))
		wantFile(t, a+d+"/f", []byte(d))
		check(t, os.Rename(a+d+"/f", a+d+"/over"))
		check(t, os.Rename(b+d+"/over", b+"/f"))
		wantFile(t, a+"/f", []byte(d))
		if st := stat(t, a+"/f"); st.Nlink != 1 {
			t.Errorf("nlink = %d after renames", st.Nlink)
		}
		if es, err := os.ReadDir(a + d); err != nil || len(es) != 0 {
			t.Errorf("%v, %v left in the directory", es, err)
		}
		wantErr(t, "rename", os.Rename(a+"/none", a+d+"/x"), syscall.ENOENT)
		check(t, os.WriteFile(a+d+"/x", nil, 0o644))
		err := unix.Renameat2(unix.AT_FDCWD, a+"/f", unix.AT_FDCWD, a+d+"/x", unix.RENAME_NOREPLACE)
		wantErr(t, "rename without replacing", err, syscall.EEXIST)
	}
	check(t, os.WriteFile(a+"/x", []byte("x"), 0o644))
	check(t, os.WriteFile(a+"/y", []byte("y"), 0o644))
	check(t, unix.Renameat2(unix.AT_FDCWD, a+"/x", unix.AT_FDCWD, a+"/y", unix.RENAME_EXCHANGE))
	wantFile(t, b+"/x", []byte("y"))
	wantFile(t, b+"/y", []byte("x"))
}

func testRenameDirectory(t *testing.T, a, b string) {
	for i := range 6 {
		p, q := fmt.Sprint("/p", i), fmt.Sprint("/q", i)
		check(t, os.MkdirAll(a+p+"/sub", 0o755))
		check(t, os.WriteFile(a+p+"/sub/f", []byte("f"), 0o644))
		check(t, os.MkdirAll(a+q+"/sub", 0o755))
		check(t, os.WriteFile(a+q+"/sub/g", nil, 0o644))
		wantErr(t, "rename over a full directory", syscall.Rename(b+p+"/sub", b+q+"/sub"), syscall.ENOTEMPTY)
		check(t, os.Remove(b+q+"/sub/g"))
		check(t, syscall.Rename(b+p+"/sub", b+q+"/sub"))
		wantFile(t, a+q+"/sub/f", []byte("f"))
		wantErr(t, "rename below itself", os.Rename(a+q, a+q+"/sub/x"), syscall.EINVAL)
		if st := stat(t, a+p); st.Nlink != 2 {
			t.Errorf("nlink of the old parent = %d", st.Nlink)
		}
		if st := stat(t, a+q); st.Nlink != 3 {
			t.Errorf("nlink of the new parent = %d", st.Nlink)
		}
	}
}

func testLinks(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", pattern(3<<20), 0o644))
	for i := range 4 {
		check(t, os.Mkdir(fmt.Sprint(a, "/d", i), 0o755))
		check(t, os.Link(a+"/f", fmt.Sprint(a, "/d", i, "/f")))
	}
	wantErr(t, "link", os.Link(a+"/f", a+"/d0/f"), syscall.EEXIST)
	wantErr(t, "link of a directory", os.Link(a+"/d0", a+"/d0/x"), syscall.EPERM)
	if st := stat(t, b+"/d2/f"); st.Nlink != 5 || st.Ino != stat(t, a+"/f").Ino {
		t.Errorf("nlink = %d, want 5", st.Nlink)
	}
	check(t, os.Remove(b+"/f"))
	for i := range 3 {
		check(t, os.Remove(fmt.Sprint(b, "/d", i, "/f")))
	}
	wantFile(t, a+"/d3/f", pattern(3<<20))
	if st := stat(t, a+"/d3/f"); st.Nlink != 1 {
		t.Errorf("nlink = %d, want 1", st.Nlink)
	}
}

func testSymlink(t *testing.T, a, b string) {
	target := string(bytes.Repeat([]byte("x/"), 1000))
	check(t, os.Symlink(target, a+"/s"))
	if got, err := os.Readlink(b + "/s"); err != nil || got != target {
		t.Errorf("Readlink = %.20q, %v", got, err)
	}
	check(t, os.WriteFile(a+"/f", []byte("f"), 0o644))
	check(t, os.Symlink("f", b+"/to"))
	wantFile(t, a+"/to", []byte("f"))
	check(t, os.Lchown(b+"/to", 5, 6))
	if st := stat(t, a+"/to"); st.Uid != 5 || st.Size != 1 || st.Mode != syscall.S_IFLNK|0o777 {
		t.Errorf("stat = %+v", st)
	}
}

func testFifo(t *testing.T, a, b string) {
	check(t, unix.Mkfifo(a+"/p", 0o600))
	if st := stat(t, b+"/p"); st.Mode != syscall.S_IFIFO|0o600 {
		t.Errorf("mode = %o", st.Mode)
	}
	check(t, os.Remove(b+"/p"))
}

func testOpenUnlinked(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", pattern(3<<20), 0o644))
	f, err := os.OpenFile(a+"/f", os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	check(t, os.Remove(a+"/f"))
	_, err = f.WriteAt([]byte("more"), 3<<20)
	check(t, err)
	got, err := io.ReadAll(f)
	if err != nil || !bytes.Equal(got, append(pattern(3<<20), "more"...)) {
		t.Errorf("read %d bytes, %v without a name", len(got), err)
	}
	var st syscall.Stat_t
	check(t, syscall.Fstat(int(f.Fd()), &st))
	if st.Nlink != 0 || st.Size != 3<<20+4 {
		t.Errorf("fstat without a name = %+v", st)
	}
	check(t, f.Truncate(10))
	check(t, f.Sync())
	_, err = os.Stat(b + "/f")
	wantErr(t, "stat there", err, syscall.ENOENT)
}

func testUnlinkedThere(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", pattern(100), 0o644))
	f, err := os.Open(a + "/f")
	check(t, err)
	defer f.Close()
	check(t, os.Remove(b+"/f"))
	_, err = f.ReadAt(make([]byte, 10), 0)
	wantErr(t, "read of what is gone", err, syscall.ESTALE)
}

func testDirectories(t *testing.T, a, b string) {
	path := a
	for i := range 20 {
		path = filepath.Join(path, fmt.Sprint("level", i))
		check(t, os.Mkdir(path, 0o755))
	}
	check(t, os.WriteFile(path+"/f", []byte("deep"), 0o644))
	rel, err := filepath.Rel(a, path)
	check(t, err)
	wantFile(t, filepath.Join(b, rel, "f"), []byte("deep"))
	check(t, os.RemoveAll(b+"/level0"))
	if es, err := os.ReadDir(a); err != nil || len(es) != 0 {
		t.Errorf("ReadDir = %v, %v after removing all", es, err)
	}
	before := stat(t, a)
	check(t, os.Mkdir(a+"/d", 0o755))
	if st := stat(t, a); st.Nlink != before.Nlink+1 || st.Mtim.Nano() <= before.Mtim.Nano() {
		t.Errorf("parent after mkdir = nlink %d, mtime %v; before: %d, %v", st.Nlink, st.Mtim, before.Nlink, before.Mtim)
	}
}

const many = 3000

func fill(t *testing.T, dir string, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		fd, err := syscall.Open(fmt.Sprintf("%s/entry-%05d", dir, i), syscall.O_CREAT|syscall.O_WRONLY, 0o644)
		check(t, err)
		check(t, syscall.Close(fd))
	}
}

func testReadDir(t *testing.T, a, b string) {
	fill(t, a, 0, many)
	check(t, os.Mkdir(b+"/sub", 0o755))
	for _, dir := range []string{a, b} {
		es, err := os.ReadDir(dir)
		if err != nil || len(es) != many+1 {
			t.Fatalf("ReadDir = %d entries, %v, want %d", len(es), err, many+1)
		}
		for i, e := range es[:many] {
			if want := fmt.Sprintf("entry-%05d", i); e.Name() != want || e.IsDir() {
				t.Fatalf("entry %d = %v", i, e)
			}
		}
		if !es[many].IsDir() {
			t.Error("sub is no directory")
		}
	}
	check(t, os.RemoveAll(b))
	check(t, os.Mkdir(b, 0o755))
}

// testReadDirWhileChanging: what is there all the time is listed once.
func testReadDirWhileChanging(t *testing.T, a, b string) {
	fill(t, a, 0, many)
	d, err := os.Open(b)
	check(t, err)
	defer d.Close()
	seen := make(map[string]int)
	for i := 0; ; i++ {
		names, err := d.Readdirnames(100)
		if errors.Is(err, io.EOF) {
			break
		}
		check(t, err)
		for _, n := range names {
			seen[n]++
		}
		// every third goes, before and behind the reader; new ones come
		k := (i*97 + 1500) % many
		k -= k % 3
		if err := os.Remove(fmt.Sprintf("%s/entry-%05d", a, k)); err != nil && !errors.Is(err, syscall.ENOENT) {
			t.Fatal(err)
		}
		check(t, os.WriteFile(fmt.Sprintf("%s/entry-%05d-new", a, i*31%many), nil, 0o644))
	}
	for i := range many {
		name := fmt.Sprintf("entry-%05d", i)
		if n := seen[name]; n > 1 || n == 0 && i%3 != 0 {
			t.Errorf("%s was listed %d times", name, n)
		}
	}
}

func testSeekDir(t *testing.T, a, b string) {
	fill(t, a, 0, many)
	fd, err := syscall.Open(b, syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	check(t, err)
	defer syscall.Close(fd)
	names := func() (all []string, places []int64) {
		buf := make([]byte, 2000)
		for {
			at, err := unix.Seek(fd, 0, io.SeekCurrent)
			check(t, err)
			n, err := unix.ReadDirent(fd, buf)
			check(t, err)
			if n == 0 {
				return all, places
			}
			_, _, got := unix.ParseDirent(buf[:n], -1, nil)
			all = append(all, got...)
			for range got {
				places = append(places, at)
			}
		}
	}
	first, places := names()
	if len(first) != many {
		t.Fatalf("%d names, want %d", len(first), many)
	}
	for _, i := range []int{many - 1, 2000, 1024, 1023, 5, 0, many / 2} {
		_, err := unix.Seek(fd, places[i], io.SeekStart)
		check(t, err)
		from := slices.Index(places, places[i])
		if again, _ := names(); !slices.Equal(again, first[from:]) {
			t.Errorf("after a seek to %d: %d names, want %d", places[i], len(again), many-from)
		}
	}
	check(t, os.WriteFile(a+"/a-new-one", nil, 0o644))
	_, err = unix.Seek(fd, 0, io.SeekStart)
	check(t, err)
	if again, _ := names(); len(again) != many+1 || again[0] != "a-new-one" {
		t.Errorf("after rewinddir: %d names, want %d", len(again), many+1)
	}
}

func testRefusals(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", []byte("0123456789"), 0o644))
	f, err := os.OpenFile(a+"/f", os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	fd := int(f.Fd())
	buf := make([]byte, 100)
	_, none := unix.Getxattr(b+"/f", "user.none", buf)
	_, acl := unix.Getxattr(b+"/f", "system.posix_acl_access", buf)
	n, list := unix.Listxattr(b+"/f", buf)
	_, hole := unix.Seek(fd, 3, unix.SEEK_HOLE)
	_, tmp := unix.Open(a, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	for _, tt := range []struct {
		what      string
		err, want error
	}{
		{"getxattr of nothing", none, syscall.ENODATA},
		{"getxattr of an ACL", acl, syscall.EOPNOTSUPP},
		{"listxattr", list, nil},
		{"setxattr", unix.Setxattr(a+"/f", "user.x", []byte("y"), 0), syscall.EOPNOTSUPP},
		{"removexattr", unix.Removexattr(a+"/f", "user.x"), syscall.ENODATA},
		{"fallocate", unix.Fallocate(fd, 0, 0, 1<<20), syscall.EOPNOTSUPP},
		{"seek to a hole", hole, nil},
		{"O_TMPFILE", tmp, syscall.EOPNOTSUPP},
		{"whiteout", unix.Renameat2(unix.AT_FDCWD, a+"/f", unix.AT_FDCWD, a+"/g", unix.RENAME_WHITEOUT), syscall.EINVAL},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s = %v, want %v", tt.what, tt.err, tt.want)
		}
	}
	if n != 0 {
		t.Errorf("listxattr = %d bytes", n)
	}
	n, err = unix.Getxattr(b+"/f", "user.bivouac.node", buf)
	if err != nil || !bytes.HasPrefix(buf[:n], []byte("n")) {
		t.Errorf("user.bivouac.node = %q, %v", buf[:max(n, 0)], err)
	}
	// copy_file_range and locks are the kernel's.
	g, err := os.Create(a + "/g")
	check(t, err)
	defer g.Close()
	_, err = f.Seek(0, io.SeekStart)
	check(t, err)
	if n, err := unix.CopyFileRange(fd, nil, int(g.Fd()), nil, 10, 0); n != 10 || err != nil {
		t.Errorf("copy_file_range = %d, %v", n, err)
	}
	check(t, syscall.Flock(fd, syscall.LOCK_EX))
	h, err := os.Open(a + "/f")
	check(t, err)
	defer h.Close()
	wantErr(t, "second flock", syscall.Flock(int(h.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}

// testSetIDs: a write by another than root takes setuid and setgid away.
func testSetIDs(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", []byte("x"), 0o644))
	check(t, os.Chmod(a+"/f", 0o777|os.ModeSetuid|os.ModeSetgid))
	if st := stat(t, b+"/f"); st.Mode&0o7777 != 0o6777 {
		t.Fatalf("mode = %o", st.Mode)
	}
	check(t, os.Truncate(a+"/f", 0))
	check(t, os.WriteFile(b+"/f", []byte("y"), 0))
	// Root may keep them; whoever is not root is tested where the job's user runs.
	wantFile(t, a+"/f", []byte("y"))
}

func testFsync(t *testing.T, a, b string) {
	f, err := os.Create(a + "/f")
	check(t, err)
	defer f.Close()
	_, err = f.Write(pattern(3 << 20))
	check(t, err)
	check(t, f.Sync())
	wantFile(t, b+"/f", pattern(3<<20)) // without a close
	d, err := os.Open(a)
	check(t, err)
	check(t, d.Sync())
	check(t, d.Close())
}
