package mounts

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

const set = 3 // a dataset

func dirIno(n uint32) metadata.Ino { return metadata.SealedIno(set, metadata.DirPart, n) }

// someNames returns a dataset with a directory below its root.
func someNames() []Named {
	file := metadata.Attr{Ino: metadata.SealedIno(set, 2, 9), Mode: syscall.S_IFREG | 0o644, Nlink: 1, UID: 5, GID: 6, Size: 7, Mtime: -8}
	linked := metadata.Attr{Ino: metadata.SealedIno(set, 2, 10), Mode: syscall.S_IFREG | 0o600, Nlink: 2}
	return []Named{
		{Name: "a", Attr: file, Node: "n1,n2"},
		{Name: "b", Attr: linked, Node: strings.Repeat("n", 255)},
		{Name: "c", Attr: linked},
		{Name: "dir", Attr: metadata.Attr{Ino: dirIno(1), Mode: syscall.S_IFDIR | 0o755, Nlink: 2}},
		{Dir: 1, Name: strings.Repeat("\xff", 255), Attr: metadata.Attr{Ino: metadata.SealedIno(set, 0, 1), Mode: syscall.S_IFLNK | 0o777, Nlink: 1}, Target: strings.Repeat("t", 4095)},
	}
}

func treeOf(t testing.TB, dirs uint32, names []Named) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewTree(&b, dirs, metadata.Attr{Ino: dirIno(0), Mode: syscall.S_IFDIR | 0o755, Nlink: 3})
	for _, n := range names {
		err = errors.Join(err, w.Add(n))
	}
	if err := errors.Join(err, w.End()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// nowhere discards what is written.
type nowhere struct{}

func (nowhere) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }

// TestTree: a tree that was written can be read back, and a truncated one is an error.
func TestTree(t *testing.T) {
	want := someNames()
	b := treeOf(t, 2, want)
	var r treeReader
	dirs, root, err := r.begin(bytes.NewReader(b))
	if err != nil || dirs != 2 || root.Attr.Ino != dirIno(0) || root.Attr.Nlink != 3 {
		t.Fatalf("begin = %d, %+v, %v", dirs, root, err)
	}
	for _, w := range want {
		got, more, err := r.next()
		if err != nil || !more || got != w {
			t.Errorf("next = %+v, %v, %v, want %+v", got, more, err, w)
		}
	}
	if _, more, err := r.next(); more || err != nil {
		t.Errorf("after the end: %v, %v", more, err)
	}
	if size, top, err := writeImage(nowhere{}, bytes.NewReader(b)); err != nil || size%4096 != 0 || top != dirIno(0) {
		t.Errorf("writeImage = %d, root %v, %v", size, top, err)
	}
	for cut := range len(b) {
		if _, _, err := writeImage(nowhere{}, bytes.NewReader(b[:cut])); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("a tree that is cut at %d: %v, want EOF", cut, err)
		}
	}
	w, err := NewTree(io.Discard, 1, root.Attr)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []Named{{Name: strings.Repeat("n", 256)}, {Name: "a", Target: strings.Repeat("t", 4096)}} {
		if err := w.Add(n); !errors.Is(err, syscall.ENAMETOOLONG) {
			t.Errorf("Add of a long name: %v, want ENAMETOOLONG", err)
		}
	}
}

// TestTreeRefuses: no image is made from an inconsistent tree.
func TestTreeRefuses(t *testing.T) {
	live := metadata.Attr{Ino: metadata.LiveIno(1, 2000), Mode: syscall.S_IFREG | 0o644}
	file := metadata.Attr{Ino: metadata.SealedIno(set, 1, 1), Mode: syscall.S_IFREG | 0o644, Nlink: 1}
	dev := file
	dev.Mode = syscall.S_IFBLK | 0o666
	dir := metadata.Attr{Ino: dirIno(1), Mode: syscall.S_IFDIR | 0o755}
	for what, c := range map[string]struct {
		dirs  uint32
		names []Named
	}{
		"no directories":              {0, nil},
		"too many directories":        {1<<32 - 1, nil},
		"a live inode":                {1, []Named{{Name: "a", Attr: live}}},
		"a device":                    {1, []Named{{Name: "a", Attr: dev}}},
		"a name with a slash":         {1, []Named{{Name: "../a", Attr: file}}},
		"no name":                     {1, []Named{{Attr: file}}},
		"a name twice":                {1, []Named{{Name: "a", Attr: file}, {Name: "a", Attr: file}}},
		"a directory that is missing": {2, []Named{{Name: "a", Attr: file}}},
		"a directory in itself":       {2, []Named{{Dir: 1, Name: "a", Attr: dir}}},
		"a directory too many":        {1, []Named{{Name: "a", Attr: dir}}},
		"a target of a file":          {1, []Named{{Name: "a", Attr: file, Target: "/etc"}}},
	} {
		if _, _, err := writeImage(nowhere{}, bytes.NewReader(treeOf(t, c.dirs, c.names))); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	if _, _, err := writeImage(nowhere{}, strings.NewReader("BIVVIEW\x02....")); !errors.Is(err, syscall.EBADMSG) {
		t.Errorf("another version: %v, want EBADMSG", err)
	}
}

// FuzzTree: any input results in an image or an error.
func FuzzTree(f *testing.F) {
	f.Add(treeOf(f, 2, someNames()))
	f.Add(treeOf(f, 1, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if size, _, err := writeImage(nowhere{}, bytes.NewReader(b)); err == nil && (size < 64<<30 || size%4096 != 0) {
			t.Errorf("an image of %d bytes", size)
		}
	})
}

// TestObjectPath: the path of a file's data depends only on its inode number.
func TestObjectPath(t *testing.T) {
	ino := metadata.SealedIno(1, 2, 0xabcd)
	if got, want := ObjectPath(ino), "/cd/800100020000abcd"; got != want {
		t.Errorf("ObjectPath = %s, want %s", got, want)
	}
}

// TestViewRefuses: a view is made only below mounts of bivouac, with absolute store directories.
func TestViewRefuses(t *testing.T) {
	for _, v := range []View{
		{Cover: Cover{Base: "/", Name: "x"}}, {Cover: Cover{Base: "/", Name: "x"}, Stores: []string{"a"}},
		{Cover: Cover{Base: "/", Name: ".."}, Stores: []string{"/a"}},
	} {
		if _, err := v.Mount(t.Context(), "/bin/false"); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Mount of %+v = %v, want EINVAL", v, err)
		}
	}
	v := View{Cover: Cover{Base: t.TempDir(), Name: "x"}, Stores: []string{t.TempDir()}}
	if _, err := v.Mount(t.Context(), "/bin/false"); err == nil {
		t.Error("a helper that does nothing is no error")
	}
	if _, _, _, err := v.make(devNull(t)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a view outside of our mounts: %v, want EINVAL", err)
	}
}
