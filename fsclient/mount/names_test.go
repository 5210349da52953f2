package mount_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func testRename(t *testing.T, a, b string) {
	for i := range 6 { // the directories have homes on all nodes
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
	f, err := os.OpenFile(a+"/f", os.O_RDWR, 0)
	check(t, err)
	defer f.Close()
	check(t, os.Remove(b+"/f"))
	_, err = f.WriteAt([]byte("more"), 100)
	check(t, err)
	check(t, f.Sync())
	p := make([]byte, 200)
	if n, err := f.ReadAt(p, 0); !errors.Is(err, io.EOF) || !bytes.Equal(p[:n], append(pattern(100), "more"...)) {
		t.Errorf("read %d bytes, %v of a file that was unlinked there", n, err)
	}
	check(t, os.WriteFile(a+"/g", []byte("other"), 0o644))
	g, err := os.Open(b + "/g")
	check(t, err)
	defer g.Close()
	check(t, os.Rename(a+"/g", a+"/h"))
	check(t, os.WriteFile(a+"/i", nil, 0o644))
	check(t, os.Rename(a+"/i", a+"/h"))
	if n, err := g.ReadAt(p, 0); !errors.Is(err, io.EOF) || string(p[:n]) != "other" {
		t.Errorf("read %q, %v of a file that was replaced there", p[:n], err)
	}
	var st syscall.Stat_t
	check(t, syscall.Fstat(int(g.Fd()), &st))
	if st.Nlink != 0 || st.Size != 5 {
		t.Errorf("fstat of a file that was replaced there = %+v", st)
	}
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
