package erofs_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata/erofs"
)

const (
	fileMode = syscall.S_IFREG | 0o640
	dirMode  = syscall.S_IFDIR | 0o2751
	linkMode = syscall.S_IFLNK | 0o777
)

// tree is the expected tree: the entries of the directories, numbered as a manifest numbers them.
type tree []map[string]entry

type entry struct {
	node erofs.Node
	dir  int    // the number of a directory
	same string // an earlier name of the same file in the same directory
}

var root = erofs.Node{Mode: dirMode, Nlink: 3, UID: 7, GID: 8, Mtime: -1_500_000_000}

// image writes the image of a tree and returns its path.
func image(t *testing.T, tr tree) string {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := erofs.New(f, int64(len(tr)), root)
	if err != nil {
		t.Fatal(err)
	}
	for d, es := range tr {
		if err := w.Begin(uint32(d)); err != nil {
			t.Fatal(err)
		}
		ids := make(map[string]erofs.NodeID)
		for _, name := range slices.Sorted(maps.Keys(es)) {
			e := es[name]
			switch {
			case e.dir > 0:
				ids[name], err = w.Dir(uint32(e.dir), e.node)
			case e.same != "":
				ids[name] = ids[e.same]
			default:
				ids[name], err = w.Put(e.node)
			}
			if err == nil {
				err = w.Enter(name, ids[name], e.node.Mode)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	size, err := w.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// mounted mounts an image and returns the mount point.
func mounted(t *testing.T, file string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	if b, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(b), "\terofs\n") {
		t.Skip("this kernel has no EROFS")
	}
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "ro,loop", file, dir).CombinedOutput(); err != nil {
		t.Fatalf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestImage(t *testing.T) {
	t.Parallel()
	long, odd := strings.Repeat("n", 255), "\xff\xfe\n \x01"
	file := func(size int64, attrs ...erofs.Xattr) entry {
		n := erofs.Node{Mode: fileMode, Nlink: 1, UID: 1 << 20, GID: 1<<32 - 2, Size: size, Mtime: 1_700_000_000_123_456_789, Xattrs: attrs}
		if size > 0 {
			n.Redirect = fmt.Sprintf("/ab/%016x", size)
		}
		return entry{node: n}
	}
	link := func(target string) entry {
		return entry{node: erofs.Node{Mode: linkMode, Nlink: 1, Target: target, Mtime: 1}}
	}
	dir := func(n int, nlink uint32) entry {
		return entry{node: erofs.Node{Mode: dirMode, Nlink: nlink, Mtime: int64(n) * 1e9}, dir: n}
	}
	twice := file(1 << 40)
	twice.node.Nlink, twice.node.Mode = 2, fileMode|syscall.S_ISUID
	again := twice
	again.same = "1"
	tr := tree{
		{"a": dir(2, 2), "b": dir(1, 3), long: file(3), odd: file(0), "!": link("a"), "-": file(1), "..a": file(2), ".x": link(strings.Repeat("t/", 2047)), "1": twice, "2": again},
		{"inner": dir(3, 2), "link": link("../" + long)},
		{},
		{"x": file(9, erofs.Xattr{Name: "bivouac.node", Value: "n1"}, erofs.Xattr{Name: "k", Value: "\x00"})},
		{},
	}
	tr[1]["large"] = dir(4, 2)
	for i := range 50_000 {
		tr[4][fmt.Sprintf("%07d%s", i*7, strings.Repeat("x", i%40))] = file(int64(i + 1))
	}
	for i := range 300 {
		tr[2][fmt.Sprint("link", i)] = link(strings.Repeat("y", 13*i+1))
	}
	at := mounted(t, image(t, tr))
	wantDir(t, tr, 0, at)
	wantNode(t, at, root)
	var st syscall.Statfs_t
	if err := syscall.Statfs(at, &st); err != nil || st.Type != 0xE0F5E1E2 || int64(st.Blocks) < 1<<40/4096 {
		t.Errorf("statfs = %+v, %v", st, err)
	}
	if _, err := os.Lstat(filepath.Join(at, "b", "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stat of what is not there: %v", err)
	}
}

// wantDir compares a directory, with everything below it, with the expected one.
func wantDir(t *testing.T, tr tree, d int, path string) {
	t.Helper()
	got, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := slices.Sorted(maps.Keys(tr[d])); len(got) != len(want) {
		t.Fatalf("%s has %d entries, want %d", path, len(got), len(want))
	}
	for name, e := range tr[d] {
		p := filepath.Join(path, name)
		wantNode(t, p, e.node)
		if e.dir > 0 {
			wantDir(t, tr, e.dir, p)
		}
		if e.same != "" && stat(t, p).Ino != stat(t, filepath.Join(path, e.same)).Ino {
			t.Errorf("%s and %s are two files", p, e.same)
		}
	}
}

func stat(t *testing.T, path string) (st syscall.Stat_t) {
	t.Helper()
	if err := syscall.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st
}

func wantNode(t *testing.T, path string, n erofs.Node) {
	t.Helper()
	st := stat(t, path)
	if st.Mode != n.Mode || uint32(st.Nlink) != n.Nlink || st.Uid != n.UID || st.Gid != n.GID || !time.Unix(st.Mtim.Unix()).Equal(time.Unix(0, n.Mtime)) {
		t.Errorf("%.100q is %+v, want %+v", path, st, n)
	}
	switch n.Mode & syscall.S_IFMT {
	case syscall.S_IFLNK:
		if to, err := os.Readlink(path); err != nil || to != n.Target || st.Size != int64(len(to)) {
			t.Errorf("%.100q leads to %.100q (%d bytes), %v, want %.100q", path, to, st.Size, err, n.Target)
		}
	case syscall.S_IFREG:
		if st.Size != n.Size {
			t.Errorf("%.100q has %d bytes, want %d", path, st.Size, n.Size)
		}
		want := map[string]string{}
		if n.Redirect != "" {
			want["trusted.overlay.metacopy"], want["trusted.overlay.redirect"] = "", n.Redirect
		}
		for _, x := range n.Xattrs {
			want["user."+x.Name] = x.Value
		}
		if got := xattrs(t, path); !maps.Equal(got, want) {
			t.Errorf("%.100q has attributes %q, want %q", path, got, want)
		}
	}
}

func xattrs(t *testing.T, path string) map[string]string {
	t.Helper()
	b := make([]byte, 4096)
	n, err := unix.Llistxattr(path, b)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(b[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		v := make([]byte, 4096)
		k, err := unix.Lgetxattr(path, name, v)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(v[:k])
	}
	return got
}

// memory is a file that discards what is written.
type memory struct{}

func (memory) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// TestRefuses: entries that an image cannot contain cause an error, and so does an inconsistent tree.
func TestRefuses(t *testing.T) {
	t.Parallel()
	ok := erofs.Node{Mode: fileMode, Nlink: 1}
	for _, n := range []erofs.Node{
		{Mode: syscall.S_IFCHR | 0o666}, {Mode: syscall.S_IFDIR | 0o755}, {Mode: 1<<16 | fileMode}, {Mode: fileMode, Size: -1},
		{Mode: fileMode, Size: 1}, {Mode: fileMode, Redirect: "/a"}, {Mode: fileMode, Size: 1, Redirect: "a"}, {Mode: fileMode, Target: "x"},
		{Mode: fileMode, Size: 1, Redirect: "/" + strings.Repeat("r", erofs.MaxXattrs)},
		{Mode: linkMode}, {Mode: linkMode, Target: "a\x00"}, {Mode: linkMode, Target: strings.Repeat("t", 4096)}, {Mode: linkMode, Target: "a", Redirect: "/a"},
		{Mode: fileMode, Xattrs: []erofs.Xattr{{Name: ""}}}, {Mode: fileMode, Xattrs: []erofs.Xattr{{Name: strings.Repeat("n", 256)}}},
		{Mode: fileMode, Xattrs: []erofs.Xattr{{Name: "a", Value: strings.Repeat("v", erofs.MaxXattrs)}}},
	} {
		w := writer(t, 1)
		if _, err := w.Put(n); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Put(%.200q) = %v, want EINVAL", fmt.Sprint(n), err)
		}
	}
	for _, names := range [][]string{{""}, {"."}, {".."}, {"a/b"}, {"a\x00"}, {strings.Repeat("n", 256)}, {"a", "a"}, {"b", "a"}} {
		w := writer(t, 1)
		var err error
		for _, name := range names {
			id, e := w.Put(ok)
			err = errors.Join(err, e, w.Enter(name, id, ok.Mode))
		}
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Enter of %.300q = %v, want EINVAL", names, err)
		}
	}
	for _, dirs := range []int64{-1, 0, erofs.MaxNodes + 1} {
		if _, err := erofs.New(memory{}, dirs, root); !errors.Is(err, syscall.EFBIG) {
			t.Errorf("New with %d directories = %v, want EFBIG", dirs, err)
		}
	}
	w := writer(t, 3)
	sub := erofs.Node{Mode: dirMode}
	for n, want := range map[uint32]error{0: syscall.EINVAL, 3: syscall.EINVAL, 2: nil} {
		if _, err := w.Dir(n, sub); !errors.Is(err, want) {
			t.Errorf("Dir(%d) = %v, want %v", n, err, want)
		}
	}
	if _, err := w.Dir(2, sub); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a directory with two names: %v, want EINVAL", err)
	}
	if _, err := w.Finish(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("an end without directory 1: %v, want EINVAL", err)
	}
	if err := w.Begin(7); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Begin(7) = %v, want EINVAL", err)
	}
}

func writer(t *testing.T, dirs int64) *erofs.Writer {
	t.Helper()
	w, err := erofs.New(memory{}, dirs, root)
	if err != nil {
		t.Fatal(err)
	}
	return w
}
