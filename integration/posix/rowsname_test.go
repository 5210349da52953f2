package posix

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/integration/testcluster"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// namesRow: new names and removals are visible at once.
func namesRow(t *testing.T, _ *camp, here, there string) {
	for i := range 20 {
		a, b := here, there
		if i%2 == 1 {
			a, b = there, here
		}
		_, err := os.Stat(b + "/f")
		wantErr(t, "stat before", err, syscall.ENOENT)
		check(t, os.WriteFile(a+"/f", nil, 0o644))
		stat(t, b+"/f")
		check(t, os.Rename(b+"/f", b+"/g"))
		_, err = os.Stat(a + "/f")
		wantErr(t, "stat of the old name", err, syscall.ENOENT)
		check(t, os.Mkdir(b+"/f", 0o755))
		check(t, os.Remove(a+"/g"))
		if st := stat(t, a+"/f"); st.Mode&syscall.S_IFMT != syscall.S_IFDIR {
			t.Errorf("f is %o, want a directory", st.Mode)
		}
		check(t, os.WriteFile(a+"/f/x", []byte("x"), 0o644))
		wantErr(t, "rmdir of a full directory", syscall.Rmdir(b+"/f"), syscall.ENOTEMPTY)
		check(t, os.RemoveAll(b+"/f"))
		_, err = os.Stat(a + "/f")
		wantErr(t, "stat after", err, syscall.ENOENT)
	}
}

// attributes: changes of files are visible at once, changes of directories soon.
func attributes(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", []byte("12345"), 0o640))
	for i := range 20 {
		a, b := here, there
		if i%2 == 1 {
			a, b = there, here
		}
		when := time.Unix(int64(1e9+i), 123456789)
		check(t, os.Chmod(a+"/f", os.FileMode(0o600+i)))
		check(t, os.Chown(a+"/f", 1000+i, 2000+i))
		check(t, os.Chtimes(a+"/f", time.Unix(-5, 7), when))
		st := stat(t, b+"/f")
		if st.Mode != uint32(syscall.S_IFREG|0o600+i) || st.Uid != uint32(1000+i) || st.Gid != uint32(2000+i) || st.Mtim.Nano() != when.UnixNano() ||
			st.Atim.Nano() != time.Unix(-5, 7).UnixNano() || st.Size != 5 || st.Nlink != 1 {
			t.Fatalf("round %d: %+v", i, st)
		}
	}
	check(t, os.Mkdir(here+"/d", 0o755))
	stat(t, there+"/d")
	check(t, os.Chmod(here+"/d", 0o700))
	testcluster.Eventually(t, "the mode of the directory is seen", func() bool { return stat(t, there+"/d").Mode == syscall.S_IFDIR|0o700 })
	check(t, os.Mkdir(there+"/d/sub", 0o755))
	testcluster.Eventually(t, "the link of the directory is counted", func() bool { return stat(t, here+"/d").Nlink == 3 })
}

// xattrs: user xattrs of files and directories.
func xattrs(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", nil, 0o644))
	check(t, os.Mkdir(here+"/d", 0o755))
	big := pattern(1 << 16)
	b := make([]byte, 1<<16)
	for _, name := range []string{"/f", "/d"} {
		check(t, unix.Setxattr(here+name, "user.a", []byte("one"), unix.XATTR_CREATE))
		check(t, unix.Setxattr(there+name, "user.a", big, unix.XATTR_REPLACE))
		wantErr(t, "create again", unix.Setxattr(there+name, "user.a", nil, unix.XATTR_CREATE), syscall.EEXIST)
		wantErr(t, "replace nothing", unix.Setxattr(there+name, "user.b", nil, unix.XATTR_REPLACE), syscall.ENODATA)
		if n, err := unix.Getxattr(here+name, "user.a", b); err != nil || !bytes.Equal(b[:n], big) {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
		_, err := unix.Getxattr(here+name, "user.a", b[:10])
		wantErr(t, "get into little room", err, syscall.ERANGE)
		n, err := unix.Listxattr(there+name, b)
		if err != nil || !slices.Contains(strings.Split(string(b[:n]), "\x00"), "user.a") {
			t.Errorf("%s: list = %q, %v", name, b[:max(n, 0)], err)
		}
		check(t, unix.Removexattr(there+name, "user.a"))
		_, err = unix.Getxattr(here+name, "user.a", b)
		wantErr(t, "get of what was removed", err, syscall.ENODATA)
	}
	check(t, os.Symlink("f", here+"/l"))
	check(t, syscall.Mkfifo(here+"/p", 0o644))
	for _, name := range []string{"/l", "/p"} {
		wantErr(t, "set on "+name, unix.Lsetxattr(there+name, "user.a", nil, 0), syscall.EPERM)
	}
}

// copies: a file closed here is on two nodes, and readable there; a file with data keeps its number of copies.
func copies(t *testing.T, _ *camp, here, there string) {
	check(t, unix.Setxattr(here, "user.bivouac.copies", []byte("2"), 0))
	check(t, unix.Setxattr(here, "user.bivouac.layout", []byte("local"), 0))
	check(t, os.WriteFile(here+"/f", []byte("twice"), 0o644))
	if b, err := os.ReadFile(there + "/f"); err != nil || string(b) != "twice" {
		t.Errorf("there: %q, %v", b, err)
	}
	b := make([]byte, 200)
	n, err := unix.Getxattr(there+"/f", "user.bivouac.copies", b)
	check(t, err)
	if string(b[:n]) != "2" {
		t.Errorf("copies of the file: %q", b[:n])
	}
	n, err = unix.Getxattr(there+"/f", "user.bivouac.node", b)
	check(t, err)
	if nodes := strings.FieldsFunc(string(b[:n]), func(r rune) bool { return r == ',' || r == ' ' }); len(nodes) != 2 {
		t.Errorf("nodes of the file: %q, want two", b[:n])
	}
	tmp := openTmp(t, there, 0, pattern(5000))
	check(t, unix.Linkat(int(tmp.Fd()), "", unix.AT_FDCWD, there+"/tmp", unix.AT_EMPTY_PATH))
	check(t, tmp.Close())
	wantFile(t, here+"/tmp", pattern(5000))
	if n, err = unix.Getxattr(here+"/tmp", "user.bivouac.copies", b); err != nil || string(b[:n]) != "2" {
		t.Errorf("copies of a file that got its name late: %q, %v", b[:max(n, 0)], err)
	}
	wantErr(t, "copies of a file with data", unix.Setxattr(there+"/f", "user.bivouac.copies", []byte("1"), 0), syscall.EBUSY)
}

// layouts: new entries inherit the layout of their directory.
func layouts(t *testing.T, c *camp, here, there string) {
	check(t, unix.Setxattr(here, "user.bivouac.layout", []byte("local"), 0))
	for i, dir := range []string{here, there} {
		check(t, os.WriteFile(fmt.Sprint(dir, "/f", i), pattern(3<<20), 0o644))
		check(t, os.Mkdir(fmt.Sprint(dir, "/d", i), 0o755))
		check(t, os.WriteFile(fmt.Sprintf("%s/d%d/f", dir, i), pattern(3<<20), 0o644))
		for _, name := range []string{"f%d", "d%d/f"} {
			b := make([]byte, 1000)
			n, err := unix.Getxattr(there+"/"+fmt.Sprintf(name, i), "user.bivouac.node", b)
			if want := c.Nodes[i].Job.Hosts[i]; err != nil || string(b[:n]) != want {
				t.Errorf("%s is on %q, %v, want %s", name, b[:max(n, 0)], err, want)
			}
			wantFile(t, here+"/"+fmt.Sprintf(name, i), pattern(3<<20))
		}
	}
}

// rename: between directories of any homes, with and without an existing target.
func rename(t *testing.T, _ *camp, here, there string) {
	for i := range 8 {
		from, to := fmt.Sprintf("/from%d", i), fmt.Sprintf("/to%d", i)
		check(t, os.Mkdir(here+from, 0o755))
		check(t, os.Mkdir(there+to, 0o755))
		check(t, os.WriteFile(here+from+"/f", []byte("moved"), 0o644))
		check(t, os.Rename(there+from+"/f", there+to+"/f"))
		wantFile(t, here+to+"/f", []byte("moved"))
		_, err := os.Lstat(here + from + "/f")
		wantErr(t, "stat of the old name", err, syscall.ENOENT)
		check(t, os.WriteFile(here+from+"/f", []byte("over it"), 0o644))
		wantErr(t, "NOREPLACE", unix.Renameat2(unix.AT_FDCWD, here+from+"/f", unix.AT_FDCWD, here+to+"/f", unix.RENAME_NOREPLACE), syscall.EEXIST)
		check(t, os.Rename(here+from+"/f", here+to+"/f"))
		wantFile(t, there+to+"/f", []byte("over it"))
		check(t, os.WriteFile(there+from+"/f", []byte("other"), 0o644))
		check(t, unix.Renameat2(unix.AT_FDCWD, here+from+"/f", unix.AT_FDCWD, here+to+"/f", unix.RENAME_EXCHANGE))
		wantFile(t, there+to+"/f", []byte("other"))
		wantFile(t, there+from+"/f", []byte("over it"))
	}
	neverBoth(t, here, there)
}

// neverBoth: a file that is renamed back and forth always has exactly one name and one link, on every node, and
// leaves no name behind.
func neverBoth(t *testing.T, here, there string) {
	check(t, os.WriteFile(here+"/from0/ball", nil, 0o644))
	done := make(chan error, 1)
	go func() {
		var err error
		for i := 0; i < 300 && err == nil; i++ {
			a, b := here+"/from0/ball", fmt.Sprintf("%s/to%d/ball", here, i%8)
			err = errors.Join(os.Rename(a, b), os.Rename(b, a))
		}
		done <- err
	}()
	var err error
	for moving := true; moving; {
		select {
		case err = <-done:
			moving = false
		default:
		}
		for _, dir := range []string{"/from0", "/to0", "/to5"} {
			st, err := os.Lstat(there + dir + "/ball")
			if err == nil && st.Sys().(*syscall.Stat_t).Nlink != 1 || err != nil && !errors.Is(err, syscall.ENOENT) {
				t.Errorf("%s: %v, %v", dir, st, err)
			}
		}
	}
	check(t, err)
	stat(t, there+"/from0/ball")
	for i := range 8 {
		_, err := os.Lstat(fmt.Sprintf("%s/to%d/ball", there, i))
		wantErr(t, "stat where it was", err, syscall.ENOENT)
	}
}

// renameDirectory: a directory cannot be moved below itself, even by concurrent renames.
func renameDirectory(t *testing.T, _ *camp, here, there string) {
	check(t, os.MkdirAll(here+"/a/b/c", 0o755))
	check(t, os.WriteFile(here+"/a/b/c/f", []byte("deep"), 0o644))
	wantErr(t, "rename below itself", syscall.Rename(there+"/a", there+"/a/b/x"), syscall.EINVAL)
	check(t, os.Rename(there+"/a/b", there+"/b"))
	wantFile(t, here+"/b/c/f", []byte("deep"))
	check(t, os.Mkdir(here+"/empty", 0o755))
	check(t, syscall.Rename(here+"/b", here+"/empty")) // os.Rename refuses without a system call
	wantFile(t, there+"/empty/c/f", []byte("deep"))
	check(t, os.Mkdir(there+"/e2", 0o755))
	wantErr(t, "rename over a full one", syscall.Rename(there+"/e2", there+"/empty"), syscall.ENOTEMPTY)
	for i := range 20 {
		x, y := fmt.Sprintf("/x%d", i), fmt.Sprintf("/y%d", i)
		check(t, os.Mkdir(here+x, 0o755))
		check(t, os.Mkdir(here+y, 0o755))
		var errs [2]error
		var wg sync.WaitGroup
		wg.Go(func() { errs[0] = syscall.Rename(here+x, here+y+"/in") })
		wg.Go(func() { errs[1] = syscall.Rename(there+y, there+x+"/in") })
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Fatalf("moves into each other: %v and %v", errs[0], errs[1])
		}
	}
}

// rmdirOpen: nothing can be created in a removed directory.
func rmdirOpen(t *testing.T, _ *camp, here, there string) {
	check(t, os.Mkdir(here+"/d", 0o755))
	fd, err := unix.Open(there+"/d", unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	check(t, err)
	defer func() { check(t, unix.Close(fd)) }()
	check(t, syscall.Rmdir(here+"/d"))
	_, err = unix.Openat(fd, "f", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
	for what, err := range map[string]error{"create": err, "mkdir": unix.Mkdirat(fd, "d", 0o755)} {
		if !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s in it = %v, want ENOENT", what, err)
		}
	}
	var st unix.Stat_t
	testcluster.Eventually(t, "its handle tells that it is gone", func() bool {
		return unix.Fstatat(fd, "f", &st, 0) == syscall.ENOENT && unix.Fstat(fd, &st) == nil && st.Nlink == 0
	})
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		t.Errorf("mode of what is gone = %o", st.Mode)
	}
}

// changeTimes: times change with the operations that must change them, and only then.
func changeTimes(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", []byte("x"), 0o644))
	last := stat(t, there+"/f")
	for what, do := range map[string]func() error{
		"write":    func() error { return os.WriteFile(there+"/f", []byte("xy"), 0o644) },
		"truncate": func() error { return os.Truncate(here+"/f", 1) },
		"chmod":    func() error { return os.Chmod(there+"/f", 0o600) },
		"link":     func() error { return os.Link(here+"/f", here+"/g"+fmt.Sprint(time.Now().UnixNano())) },
		"rename":   func() error { return errors.Join(os.Rename(there+"/f", there+"/h"), os.Rename(here+"/h", here+"/f")) },
	} {
		check(t, do())
		st := stat(t, here+"/f")
		if st.Ctim.Nano() <= last.Ctim.Nano() {
			t.Errorf("ctime did not move by %s", what)
		}
		if moved := st.Mtim.Nano() != last.Mtim.Nano(); moved != (what == "write" || what == "truncate") {
			t.Errorf("mtime after %s: %v, before %v", what, st.Mtim, last.Mtim)
		}
		last = st
	}
	_, err := os.ReadFile(there + "/f")
	check(t, err)
	if st := stat(t, here+"/f"); st.Mtim != last.Mtim || st.Ctim != last.Ctim {
		t.Error("reading moved a time")
	}
	before := stat(t, here)
	check(t, os.WriteFile(there+"/new", nil, 0o644))
	testcluster.Eventually(t, "the directory's mtime is seen", func() bool {
		st := stat(t, here)
		return st.Mtim.Nano() > before.Mtim.Nano() && st.Ctim.Nano() > before.Ctim.Nano()
	})
}

func accessTime(t *testing.T, _ *camp, here, there string) {
	check(t, os.WriteFile(here+"/f", []byte("x"), 0o644))
	when := time.Unix(1e9, 5)
	check(t, os.Chtimes(there+"/f", when, time.Now()))
	for _, dir := range []string{here, there} {
		wantFile(t, dir+"/f", []byte("x"))
	}
	if st := stat(t, here+"/f"); st.Atim.Nano() != when.UnixNano() {
		t.Errorf("atime = %v after reading", st.Atim)
	}
}

// readdir: an entry that exists throughout is listed once.
func readdir(t *testing.T, _ *camp, here, there string) { stable(t, here, there, 400) }

// wide: the same holds in a directory that is spread over all nodes.
func wide(t *testing.T, _ *camp, here, there string) {
	stable(t, here, there, 3000)
	es, err := os.ReadDir(there)
	if err != nil || len(es) != 3000 {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	check(t, os.Mkdir(here+"/sub", 0o755))
	testcluster.Eventually(t, "its links are counted", func() bool { return stat(t, there).Nlink == 3 })
	check(t, os.Rename(there+"/entry-00007", there+"/sub/in"))
	for i, dir := range []string{here, there} {
		f := openTmp(t, dir, 0, pattern(5000))
		check(t, unix.Linkat(int(f.Fd()), "", unix.AT_FDCWD, fmt.Sprint(dir, "/tmp", i), unix.AT_EMPTY_PATH))
		check(t, f.Close())
		wantFile(t, fmt.Sprint(there, "/tmp", i), pattern(5000))
	}
	_, err = os.Lstat(here + "/entry-00007")
	wantErr(t, "stat of what was moved away", err, syscall.ENOENT)
	wantErr(t, "rmdir", syscall.Rmdir(there), syscall.ENOTEMPTY)
	check(t, os.RemoveAll(there))
	_, err = os.Lstat(here)
	wantErr(t, "stat of the removed directory", err, syscall.ENOENT)
}

// stable lists a directory while other entries are made and removed in it.
func stable(t *testing.T, here, there string, n int) {
	t.Helper()
	for i := range n {
		check(t, os.WriteFile(fmt.Sprintf("%s/entry-%05d", here, i), nil, 0o644))
	}
	d, err := os.Open(there)
	check(t, err)
	seen := make(map[string]int)
	for i := 0; ; i++ {
		names, err := d.Readdirnames(50)
		if errors.Is(err, io.EOF) {
			break
		}
		check(t, err)
		for _, name := range names {
			seen[name]++
		}
		check(t, os.WriteFile(fmt.Sprintf("%s/%d-comes", here, i), nil, 0o644))
		check(t, os.Remove(fmt.Sprintf("%s/%d-comes", there, i)))
	}
	check(t, d.Close())
	for i := range n {
		if name := fmt.Sprintf("entry-%05d", i); seen[name] != 1 {
			t.Fatalf("%s was listed %d times", name, seen[name])
		}
	}
}

// nodeDown: a dead node's data is an error at once, and everything else works.
func nodeDown(t *testing.T, c *camp, here, there string) {
	const n, dead = 60, 3
	here, there = filepath.Dir(here), filepath.Dir(there) // whose home is node 0
	home := ""
	for i := 0; home == ""; i++ { // a directory with another home
		name := fmt.Sprint("/survives", i)
		check(t, os.Mkdir(here+name, 0o755))
		if metadata.Ino(stat(t, here+name).Ino).Home() != dead {
			home = name
		}
	}
	for i := range n {
		check(t, os.WriteFile(fmt.Sprint(here, home, "/", i), pattern(100), 0o644))
	}
	c.Kill(t, dead)
	testcluster.Eventually(t, "the map knows", func() bool {
		return slices.IndexFunc(c.Nodes[:dead], func(n *testcluster.Node) bool {
			d, ok := n.View().Map.Node(dead)
			return !ok || d.State != cluster.Down
		}) < 0
	})
	lost := 0
	for i := range n {
		got, err := os.ReadFile(fmt.Sprint(there, home, "/", i))
		switch {
		case errors.Is(err, syscall.EIO):
			lost++
		case err != nil || !bytes.Equal(got, pattern(100)):
			t.Errorf("file %d: %d bytes, %v: neither right nor EIO", i, len(got), err)
		}
	}
	if lost == 0 || lost == n {
		t.Errorf("%d of %d files were lost with one node of four", lost, n)
	}
	for i := range n {
		name := fmt.Sprint(there, home, "/new", i)
		check(t, os.WriteFile(name, pattern(i), 0o644))
		wantFile(t, fmt.Sprint(here, home, "/new", i), pattern(i))
	}
}
