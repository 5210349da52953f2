package metadatatest

import (
	"slices"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func testRoot(f *fixture) {
	a := f.attr(root)
	if a.Ino != root || a.Mode&fmtM != dir || a.Nlink != 2 {
		f.Errorf("root = %+v, want a directory with 2 links", a)
	}
	if names := f.listNames(root); len(names) != 0 {
		f.Errorf("entries of the root = %q, want none", names)
	}
}

func testCreate(f *fixture) {
	n := metadata.New{
		Mode: reg | 0o640, UID: 11, GID: 12,
		Layout: metadata.Layout{Kind: metadata.Local, Node: 0, ChunkSize: 1 << 16, Width: 3, Epoch: 9, Copies: 2},
	}
	before := f.attr(root).Ctime
	a, err := f.s.Create(ctx, root, "f", n)
	f.want(err, nil, "Create")
	want := metadata.Attr{Ino: a.Ino, Mode: n.Mode, Nlink: 1, UID: 11, GID: 12, Atime: a.Ctime, Mtime: a.Ctime, Ctime: a.Ctime, Layout: n.Layout}
	if a != want || a.Ino < metadata.FirstIno || a.Ino.Sealed() || a.Ctime < before {
		f.Errorf("Create = %+v, want %+v", a, want)
	}
	if got := f.attr(a.Ino); got != want {
		f.Errorf("Getattr = %+v, want %+v", got, want)
	}
	f.names(root, "f", a.Ino)
	f.names(root, "g", 0)
	f.nlink(root, 2)
}

func testCreateExisting(f *fixture) {
	file, d := f.create(root, "f"), f.mkdir(root, "d")
	for name, old := range map[string]metadata.Attr{"f": file, "d": d} {
		a, err := f.s.Create(ctx, root, name, metadata.New{Mode: reg | 0o600})
		f.want(err, syscall.EEXIST, "Create(%q)", name)
		if a.Ino != old.Ino || a.Mode&fmtM != old.Mode&fmtM {
			f.Errorf("Create(%q) = %v mode %o, want the existing %v mode %o", name, a.Ino, a.Mode, old.Ino, old.Mode)
		}
		_, err = f.s.Mkdir(ctx, root, name, metadata.New{Mode: dir | 0o700})
		f.want(err, syscall.EEXIST, "Mkdir(%q)", name)
	}
	f.nlink(root, 3)
}

func testCreateTypes(f *fixture) {
	for name, n := range map[string]metadata.New{
		"fifo": {Mode: syscall.S_IFIFO | 0o600},
		"sock": {Mode: syscall.S_IFSOCK | 0o600},
		"chr":  {Mode: syscall.S_IFCHR | 0o600, Rdev: 0x103},
	} {
		a, err := f.s.Create(ctx, root, name, n)
		f.want(err, nil, "Create(%q)", name)
		if a.Mode != n.Mode || a.Rdev != n.Rdev {
			f.Errorf("Create(%q) = mode %o, rdev %#x, want %o, %#x", name, a.Mode, a.Rdev, n.Mode, n.Rdev)
		}
	}
	_, err := f.s.Create(ctx, root, "d", metadata.New{Mode: dir | 0o700})
	f.want(err, syscall.EINVAL, "Create of a directory")
	_, err = f.s.Mkdir(ctx, root, "d", metadata.New{Mode: reg | 0o700})
	f.want(err, syscall.EINVAL, "Mkdir of a file")
}

func testGoodNames(f *fixture) {
	names := []string{
		"a", "...", ".a", " ", "new\nline", "\x01", "bad\xff\xfeutf8", "\xff", "-rf", "ü", "a:b", "a\\b",
		strings.Repeat("n", metadata.MaxName),
	}
	for _, name := range names {
		f.names(root, name, f.create(root, name).Ino)
	}
	slices.Sort(names)
	if got := f.listNames(root); !slices.Equal(got, names) {
		f.Errorf("ReadDir = %q, want %q", got, names)
	}
}

func testBadNames(f *fixture) {
	file := f.create(root, "f").Ino
	f.mkdir(root, "d")
	tests := map[string]syscall.Errno{
		"": syscall.EINVAL, ".": syscall.EINVAL, "..": syscall.EINVAL, "a/b": syscall.EINVAL, "/": syscall.EINVAL,
		"a\x00": syscall.EINVAL, strings.Repeat("n", metadata.MaxName+1): syscall.ENAMETOOLONG,
	}
	for name, want := range tests {
		_, err := f.s.Lookup(ctx, root, name)
		f.want(err, want, "Lookup(%.9q)", name)
		_, err = f.s.Create(ctx, root, name, metadata.New{Mode: reg | 0o600})
		f.want(err, want, "Create(%.9q)", name)
		_, err = f.s.Mkdir(ctx, root, name, metadata.New{Mode: dir | 0o700})
		f.want(err, want, "Mkdir(%.9q)", name)
		_, err = f.s.Link(ctx, file, root, name)
		f.want(err, want, "Link(%.9q)", name)
		_, err = f.s.Unlink(ctx, root, name)
		f.want(err, want, "Unlink(%.9q)", name)
		f.want(f.s.Rmdir(ctx, root, name), want, "Rmdir(%.9q)", name)
		_, err = f.s.Rename(ctx, metadata.Rename{Dir: root, Name: name, NewDir: root, NewName: "x"})
		f.want(err, want, "Rename(%.9q, x)", name)
		_, err = f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "f", NewDir: root, NewName: name})
		f.want(err, want, "Rename(f, %.9q)", name)
	}
	if got := f.listNames(root); !slices.Equal(got, []string{"d", "f"}) {
		f.Errorf("ReadDir = %q, want d, f", got)
	}
}

// everyOp calls each operation that takes a directory, on dir.
func (f *fixture) everyOp(dir, file metadata.Ino, want error) {
	f.Helper()
	_, err := f.s.Lookup(ctx, dir, "x")
	f.want(err, want, "Lookup")
	_, err = f.s.Create(ctx, dir, "x", metadata.New{Mode: reg | 0o600})
	f.want(err, want, "Create")
	_, err = f.s.Mkdir(ctx, dir, "x", metadata.New{Mode: syscall.S_IFDIR | 0o700})
	f.want(err, want, "Mkdir")
	_, err = f.s.Unlink(ctx, dir, "x")
	f.want(err, want, "Unlink")
	f.want(f.s.Rmdir(ctx, dir, "x"), want, "Rmdir")
	_, err = f.s.Link(ctx, file, dir, "x")
	f.want(err, want, "Link")
	_, err = f.s.ReadDir(ctx, dir, "", 10)
	f.want(err, want, "ReadDir")
	_, err = f.s.Rename(ctx, metadata.Rename{Dir: dir, Name: "x", NewDir: root, NewName: "y"})
	f.want(err, want, "Rename from it")
	_, err = f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "f", NewDir: dir, NewName: "y"})
	f.want(err, want, "Rename into it")
	f.nlink(file, 1)
}

func testNoSuchDirectory(f *fixture) {
	file := f.create(root, "f").Ino
	d := f.mkdir(root, "d").Ino
	f.want(f.s.Rmdir(ctx, root, "d"), nil, "Rmdir")
	f.everyOp(d, file, syscall.ENOENT)
	_, err := f.s.Getattr(ctx, d)
	f.want(err, syscall.ENOENT, "Getattr of a removed directory")
}

func testNotADirectory(f *fixture) {
	file := f.create(root, "f").Ino
	f.everyOp(file, file, syscall.ENOTDIR)
}

func testUnlink(f *fixture) {
	a := f.create(root, "f")
	f.create(root, "g")
	f.mkdir(root, "d")
	e := f.unlink(root, "f")
	if e.Ino != a.Ino || e.Name != "f" || e.Mode&fmtM != reg {
		f.Errorf("Unlink = %+v, want f, %v", e, a.Ino)
	}
	if e.Attr != nil && (e.Attr.Nlink != 0 || e.Attr.Ctime < a.Ctime) {
		f.Errorf("Unlink = %+v, want no links and a newer ctime", *e.Attr)
	}
	f.names(root, "f", 0)
	_, err := f.s.Unlink(ctx, root, "f")
	f.want(err, syscall.ENOENT, "second Unlink")
	_, err = f.s.Unlink(ctx, root, "d")
	f.want(err, syscall.EISDIR, "Unlink of a directory")
	if got := f.listNames(root); !slices.Equal(got, []string{"d", "g"}) {
		f.Errorf("ReadDir = %q, want d, g", got)
	}
}

func testOrphan(f *fixture) {
	a := f.create(root, "f")
	f.want(f.s.Reap(ctx, a.Ino), nil, "Reap of what has a name")
	f.names(root, "f", a.Ino)
	f.unlink(root, "f")
	f.nlink(a.Ino, 0)
	got, err := f.s.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.GrowSize, Size: 5})
	if f.want(err, nil, "Setattr of an orphan"); got.Size != 5 || got.Nlink != 0 {
		f.Errorf("Setattr of an orphan = %+v", got)
	}
	_, err = f.s.Link(ctx, a.Ino, root, "back")
	f.want(err, syscall.ENOENT, "Link of an orphan")
	f.want(f.s.Reap(ctx, a.Ino), nil, "Reap")
	_, err = f.s.Getattr(ctx, a.Ino)
	f.want(err, syscall.ENOENT, "Getattr after Reap")
	f.want(f.s.Reap(ctx, a.Ino), nil, "second Reap")
	if b := f.create(root, "f"); b.Ino == a.Ino {
		f.Errorf("inode number %v is used again", b.Ino)
	}
}

func testReadDir(f *fixture) {
	d := f.mkdir(root, "d").Ino
	f.create(root, "e") // sorts after d, and its key may too
	var want []string
	for _, name := range []string{"b", "a", "ab", "a\x01", "a-", "Z", "~", "\xff\xff"} {
		f.create(d, name)
		want = append(want, name)
	}
	f.mkdir(d, "sub")
	want = append(want, "sub")
	slices.Sort(want)
	for _, limit := range []int{1, 2, 3, len(want), len(want) + 1, 1000} {
		var got []string
		for _, e := range f.list(d, limit) {
			got = append(got, e.Name)
			f.checkEntry(e)
			f.names(d, e.Name, e.Ino)
		}
		if !slices.Equal(got, want) {
			f.Errorf("ReadDir by %d = %q, want %q", limit, got, want)
		}
	}
	es, err := f.s.ReadDir(ctx, d, "aa", 2)
	if f.want(err, nil, "ReadDir after a name that is not there"); len(es) != 2 || es[0].Name != "ab" || es[1].Name != "b" {
		f.Errorf("ReadDir after aa = %+v, want ab, b", es)
	}
	es, err = f.s.ReadDir(ctx, d, "\xff\xff", 2)
	if f.want(err, nil, "ReadDir after the last"); len(es) != 0 {
		f.Errorf("ReadDir after the last = %+v", es)
	}
}

func testReadDirWhileRemoving(f *fixture) {
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		f.create(root, name)
	}
	var got []string
	after := ""
	for {
		es, err := f.s.ReadDir(ctx, root, after, 1)
		f.want(err, nil, "ReadDir")
		if len(es) == 0 {
			break
		}
		after = es[0].Name
		got = append(got, after)
		f.unlink(root, after)
	}
	if !slices.Equal(got, []string{"a", "b", "c", "d", "e"}) || len(f.listNames(root)) != 0 {
		f.Errorf("names seen while removing = %q, rest %q", got, f.listNames(root))
	}
}

func testDirectoryTimes(f *fixture) {
	d, e := f.mkdir(root, "d").Ino, f.mkdir(root, "e").Ino
	file := f.create(root, "file").Ino
	ops := []struct {
		name string
		op   func()
		dirs []metadata.Ino
	}{
		{"Create", func() { f.create(d, "f") }, []metadata.Ino{d}},
		{"Mkdir", func() { f.mkdir(d, "s") }, []metadata.Ino{d}},
		{"Link", func() { f.link(file, d, "l") }, []metadata.Ino{d}},
		{"Rename in it", func() { f.rename(d, "f", d, "g") }, []metadata.Ino{d}},
		{"Rename away", func() { f.rename(d, "g", e, "g") }, []metadata.Ino{d, e}},
		{"Unlink", func() { f.unlink(e, "g") }, []metadata.Ino{e}},
		{"Rmdir", func() { f.want(f.s.Rmdir(ctx, d, "s"), nil, "Rmdir") }, []metadata.Ino{d}},
	}
	for _, tt := range ops {
		before := f.attr(d).Ctime
		f.old(d, e)
		tt.op()
		f.touched(before, tt.dirs...)
		if a := f.attr(d); a.Atime != 1 {
			f.Errorf("%s changed the atime of the directory", tt.name)
		}
	}
	f.old(d)
	f.names(d, "l", file)
	f.listNames(d)
	if _, err := f.s.Create(ctx, d, "l", metadata.New{Mode: reg}); err == nil {
		f.Error("Create over a name succeeded")
	}
	if a := f.attr(d); a.Mtime != 1 || a.Atime != 1 {
		f.Errorf("times changed by what changes nothing: %+v", a)
	}
}
