package metadatatest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// XattrStore is a store with extended attributes.
type XattrStore interface {
	Store
	metadata.Xattrs
}

// RunXattrs tests the extended attributes of the stores that open returns, as Run does.
func RunXattrs(t *testing.T, open func(t *testing.T) XattrStore) {
	tests := []struct {
		name string
		test func(*xattrFixture)
	}{
		{"SetAndGet", testXattrSetAndGet},
		{"Modes", testXattrModes},
		{"Bounds", testXattrBounds},
		{"ListBound", testXattrListBound},
		{"NoSuchInode", testXattrNoSuchInode},
		{"Types", testXattrTypes},
		{"GoWithTheInode", testXattrsGoWithTheInode},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t)
			tt.test(&xattrFixture{fixture{T: t, s: s}, s})
		})
	}
}

type xattrFixture struct {
	fixture
	x metadata.Xattrs
}

func (f *xattrFixture) set(ino metadata.Ino, name string, value []byte) {
	f.Helper()
	f.want(f.x.Setxattr(ctx, ino, metadata.Xattr{Name: name, Value: value}), nil, "Setxattr(%v, %.20q)", ino, name)
}

// has fails the test unless ino has exactly the attributes want.
func (f *xattrFixture) has(ino metadata.Ino, want map[string][]byte) {
	f.Helper()
	names, err := f.x.Listxattr(ctx, ino)
	f.want(err, nil, "Listxattr(%v)", ino)
	if len(names) != len(want) || !slices.IsSorted(names) {
		f.Fatalf("Listxattr(%v) = %.40q, want %d names in order", ino, names, len(want))
	}
	for name, v := range want {
		got, err := f.x.Getxattr(ctx, ino, name)
		f.want(err, nil, "Getxattr(%v, %.20q)", ino, name)
		if !bytes.Equal(got, v) || !slices.Contains(names, name) {
			f.Fatalf("Getxattr(%v, %.20q) = %d bytes, want %d; listed: %v", ino, name, len(got), len(v), slices.Contains(names, name))
		}
	}
}

func testXattrSetAndGet(f *xattrFixture) {
	ino, other := f.create(root, "f").Ino, f.create(root, "g").Ino
	f.has(ino, nil)
	want := map[string][]byte{
		"user.a": []byte("1"), "user.empty": {}, "user.zeros": {0, 0, 0}, "user.Ünï\xff/.. \n": []byte("odd"),
		"user." + strings.Repeat("n", metadata.MaxXattrName-5): bytes.Repeat([]byte{7}, metadata.MaxXattrValue),
	}
	for name, v := range want {
		f.set(ino, name, v)
	}
	f.has(ino, want)
	f.has(other, nil)
	f.set(ino, "user.a", []byte("longer than before"))
	want["user.a"] = []byte("longer than before")
	f.has(ino, want)
	f.want(f.x.Removexattr(ctx, ino, "user.a"), nil, "Removexattr")
	delete(want, "user.a")
	f.has(ino, want)
	_, err := f.x.Getxattr(ctx, ino, "user.a")
	f.want(err, syscall.ENODATA, "Getxattr of what was removed")
	f.want(f.x.Removexattr(ctx, ino, "user.a"), syscall.ENODATA, "second Removexattr")
}

func testXattrModes(f *xattrFixture) {
	a := f.create(root, "f")
	f.old(a.Ino)
	set := func(m metadata.XattrMode, v string) error {
		return f.x.Setxattr(ctx, a.Ino, metadata.Xattr{Name: "user.a", Value: []byte(v), Mode: m})
	}
	f.want(set(metadata.XattrReplace, "0"), syscall.ENODATA, "replace of nothing")
	f.want(set(metadata.XattrCreate, "1"), nil, "create")
	f.want(set(metadata.XattrCreate, "2"), syscall.EEXIST, "create of what is there")
	f.has(a.Ino, map[string][]byte{"user.a": []byte("1")})
	f.want(set(metadata.XattrReplace, "3"), nil, "replace")
	f.want(set(3, "4"), syscall.EINVAL, "create and replace")
	f.has(a.Ino, map[string][]byte{"user.a": []byte("3")})
	if got := f.attr(a.Ino); got.Mtime != 1 || got.Ctime < a.Ctime {
		f.Errorf("after Setxattr: mtime %d, ctime %d, want only ctime changed", got.Mtime, got.Ctime)
	}
}

func testXattrBounds(f *xattrFixture) {
	ino := f.create(root, "f").Ino
	for _, tt := range []struct {
		name string
		size int
		want error
	}{
		{"", 1, syscall.ERANGE},
		{strings.Repeat("n", metadata.MaxXattrName+1), 1, syscall.ERANGE},
		{"user.zero\x00", 1, syscall.EINVAL},
		{"user.big", metadata.MaxXattrValue + 1, syscall.E2BIG},
	} {
		err := f.x.Setxattr(ctx, ino, metadata.Xattr{Name: tt.name, Value: make([]byte, tt.size)})
		f.want(err, tt.want, "Setxattr(%.20q) of %d bytes", tt.name, tt.size)
	}
	f.has(ino, nil)
}

// testXattrListBound: there are never more names than a list can return, and a removal makes room.
func testXattrListBound(f *xattrFixture) {
	ino := f.create(root, "f").Ino
	name := func(i int) string { return fmt.Sprintf("user.%0*d", metadata.MaxXattrName-5, i) }
	n := metadata.MaxXattrList / (metadata.MaxXattrName + 1)
	want := map[string][]byte{}
	for i := range n {
		f.set(ino, name(i), nil)
		want[name(i)] = nil
	}
	err := f.x.Setxattr(ctx, ino, metadata.Xattr{Name: "u"})
	f.want(err, syscall.ENOSPC, "Setxattr beyond the list")
	f.set(ino, name(3), []byte("what is there can be changed"))
	want[name(3)] = []byte("what is there can be changed")
	f.has(ino, want)
	f.want(f.x.Removexattr(ctx, ino, name(0)), nil, "Removexattr")
	delete(want, name(0))
	f.set(ino, "u", nil)
	want["u"] = nil
	f.has(ino, want)
}

func testXattrNoSuchInode(f *xattrFixture) {
	ino := metadata.LiveIno(0, 1<<40)
	_, err := f.x.Getxattr(ctx, ino, "user.a")
	f.want(err, syscall.ENOENT, "Getxattr")
	_, err = f.x.Listxattr(ctx, ino)
	f.want(err, syscall.ENOENT, "Listxattr")
	f.want(f.x.Setxattr(ctx, ino, metadata.Xattr{Name: "user.a"}), syscall.ENOENT, "Setxattr")
	f.want(f.x.Removexattr(ctx, ino, "user.a"), syscall.ENOENT, "Removexattr")
}

// testXattrTypes: a store accepts attributes of inodes of all types; the kernel decides which types may have them.
func testXattrTypes(f *xattrFixture) {
	sym, err := f.s.Create(ctx, root, "s", metadata.New{Mode: lnk | 0o777, Target: "t"})
	f.want(err, nil, "Create of a symbolic link")
	for i, ino := range []metadata.Ino{root, sym.Ino, f.mkdir(root, "d").Ino} {
		v := []byte{byte(i)}
		f.set(ino, "user.a", v)
		f.has(ino, map[string][]byte{"user.a": v})
	}
	f.rename(root, "d", root, "e")
	e, err := f.s.Lookup(ctx, root, "e")
	f.want(err, nil, "Lookup")
	f.has(e.Ino, map[string][]byte{"user.a": {2}})
	if got, err := f.s.Readlink(ctx, sym.Ino); err != nil || got != "t" {
		f.Errorf("Readlink = %q, %v", got, err)
	}
}

func testXattrsGoWithTheInode(f *xattrFixture) {
	file, d := f.create(root, "f").Ino, f.mkdir(root, "d").Ino
	for _, ino := range []metadata.Ino{file, d} {
		f.set(ino, "user.a", []byte("a"))
	}
	f.unlink(root, "f")
	f.want(f.s.Reap(ctx, file), nil, "Reap")
	f.want(f.s.Rmdir(ctx, root, "d"), nil, "Rmdir")
	for _, ino := range []metadata.Ino{file, d} {
		_, err := f.x.Getxattr(ctx, ino, "user.a")
		f.want(err, syscall.ENOENT, "Getxattr(%v) of what is gone", ino)
	}
}
