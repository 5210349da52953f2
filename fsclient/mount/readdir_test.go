package mount_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const many = 1300 // entries, enough for several listing requests

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
			t.Error("sub is not a directory")
		}
	}
	check(t, os.RemoveAll(b))
	check(t, os.Mkdir(b, 0o755))
}

// testReadDirWhileChanging: entries that exist throughout are listed exactly once.
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
		// every third entry is removed, before and behind the reader, and new ones are added
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
	for _, i := range []int{many - 1, 1100, 1024, 1023, 5, 0, many / 2} {
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
	for _, tt := range []struct {
		what      string
		err, want error
	}{
		{"fallocate that collapses", unix.Fallocate(fd, unix.FALLOC_FL_COLLAPSE_RANGE, 0, 1<<20), syscall.EOPNOTSUPP},
		{"fallocate that inserts", unix.Fallocate(fd, unix.FALLOC_FL_INSERT_RANGE, 0, 1<<20), syscall.EOPNOTSUPP},
		{"whiteout", unix.Renameat2(unix.AT_FDCWD, a+"/f", unix.AT_FDCWD, a+"/g", unix.RENAME_WHITEOUT), syscall.EINVAL},
	} {
		if !errors.Is(tt.err, tt.want) {
			t.Errorf("%s = %v, want %v", tt.what, tt.err, tt.want)
		}
	}
	// The kernel implements copy_file_range and locks.
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

// testSetIDs: a write by a user drops setuid and setgid.
func testSetIDs(t *testing.T, a, b string) {
	check(t, os.WriteFile(a+"/f", []byte("x"), 0o644))
	check(t, os.Chmod(a+"/f", 0o777|os.ModeSetuid|os.ModeSetgid))
	if st := stat(t, b+"/f"); st.Mode&0o7777 != 0o6777 {
		t.Fatalf("mode = %o", st.Mode)
	}
	check(t, os.Truncate(a+"/f", 0))
	check(t, os.WriteFile(b+"/f", []byte("y"), 0))
	// Root keeps them; other users are tested as the job's user.
	wantFile(t, a+"/f", []byte("y"))
}

func testFsync(t *testing.T, a, b string) {
	f, err := os.Create(a + "/f")
	check(t, err)
	defer f.Close()
	_, err = f.Write(pattern(3 << 20))
	check(t, err)
	check(t, f.Sync())
	wantFile(t, b+"/f", pattern(3<<20)) // before the file is closed
	d, err := os.Open(a)
	check(t, err)
	check(t, d.Sync())
	check(t, d.Close())
}
