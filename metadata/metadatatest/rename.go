package metadatatest

import (
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func testRenameFile(f *fixture) {
	d := f.mkdir(root, "d").Ino
	a := f.create(root, "f")
	if e := f.rename(root, "f", root, "g"); e != nil {
		f.Errorf("Rename replaced %+v", *e)
	}
	f.names(root, "f", 0)
	f.names(root, "g", a.Ino)
	f.rename(root, "g", d, "h")
	f.names(root, "g", 0)
	f.names(d, "h", a.Ino)
	f.nlink(a.Ino, 1)
	_, err := f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "none", NewDir: d, NewName: "x"})
	f.want(err, syscall.ENOENT, "Rename of nothing")
	_, err = f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "none", NewDir: d, NewName: "h"})
	f.want(err, syscall.ENOENT, "Rename of nothing over something")
	f.names(d, "h", a.Ino)
}

func testRenameOver(f *fixture) {
	d := f.mkdir(root, "d").Ino
	for _, to := range []metadata.Ino{root, d} {
		a, old := f.create(root, "new"), f.create(to, "old")
		f.link(old.Ino, root, "other")
		e := f.rename(root, "new", to, "old")
		if e == nil || e.Ino != old.Ino || e.Name != "old" {
			f.Fatalf("Rename replaced %+v, want %v", e, old.Ino)
		}
		if e.Attr != nil && e.Attr.Nlink != 1 {
			f.Errorf("replaced inode = %+v, want 1 link", *e.Attr)
		}
		f.nlink(old.Ino, 1)
		f.names(to, "old", a.Ino)
		f.names(root, "new", 0)
		b := f.create(root, "new")
		f.rename(root, "other", root, "new") // the last link of old stays, b goes
		f.nlink(b.Ino, 0)
		f.nlink(old.Ino, 1)
		f.unlink(root, "new")
		f.want(f.s.Reap(ctx, b.Ino), nil, "Reap")
		_, err := f.s.Getattr(ctx, b.Ino)
		f.want(err, syscall.ENOENT, "Getattr of what was replaced and reaped")
	}
	_, err := f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "d", NewDir: d, NewName: "old"})
	if err == nil {
		f.Error("Rename of a directory over a file below it succeeded")
	}
	e := f.mkdir(root, "e").Ino
	_, err = f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "e", NewDir: d, NewName: "old"})
	f.want(err, syscall.ENOTDIR, "Rename of a directory over a file")
	_, err = f.s.Rename(ctx, metadata.Rename{Dir: d, Name: "old", NewDir: root, NewName: "e"})
	f.want(err, syscall.EISDIR, "Rename of a file over a directory")
	f.names(root, "e", e)
	f.nlink(root, 4)
}

func testRenameDirectory(f *fixture) {
	a, b := f.mkdir(root, "a").Ino, f.mkdir(root, "b").Ino
	x := f.mkdir(a, "x").Ino
	f.create(x, "f")
	f.rename(a, "x", b, "y")
	f.names(b, "y", x)
	f.nlink(a, 2)
	f.nlink(b, 3)
	f.nlink(root, 4)

	full, empty := f.mkdir(root, "full").Ino, f.mkdir(root, "empty").Ino
	f.create(full, "f")
	_, err := f.s.Rename(ctx, metadata.Rename{Dir: b, Name: "y", NewDir: root, NewName: "full"})
	f.want(err, syscall.ENOTEMPTY, "Rename over a full directory")
	f.names(b, "y", x)
	e := f.rename(b, "y", root, "empty")
	if e == nil || e.Ino != empty {
		f.Errorf("Rename replaced %+v, want %v", e, empty)
	}
	f.names(root, "empty", x)
	f.nlink(b, 2)
	f.nlink(root, 6)
	_, err = f.s.Getattr(ctx, empty)
	f.want(err, syscall.ENOENT, "Getattr of the replaced directory")
	_, err = f.s.Create(ctx, empty, "late", metadata.New{Mode: reg | 0o600})
	f.want(err, syscall.ENOENT, "Create in the replaced directory")

	f.rename(root, "a", root, "full2")
	f.nlink(root, 6)
	f.rename(root, "full2", root, "b") // over an empty one, in the same directory
	f.names(root, "b", a)
	f.nlink(root, 5)
}

func testRenameSame(f *fixture) {
	d := f.mkdir(root, "d").Ino
	a := f.create(root, "f")
	f.link(a.Ino, root, "g")
	f.link(a.Ino, d, "h")
	for _, r := range []metadata.Rename{
		{Dir: root, Name: "f", NewDir: root, NewName: "f"},
		{Dir: root, Name: "f", NewDir: root, NewName: "g"},
		{Dir: root, Name: "f", NewDir: d, NewName: "h"},
		{Dir: root, Name: "d", NewDir: root, NewName: "d"},
		{Dir: root, Name: "f", NewDir: root, NewName: "g", Flags: metadata.RenameExchange},
	} {
		e, err := f.s.Rename(ctx, r)
		f.want(err, nil, "Rename(%+v)", r)
		if e != nil {
			f.Errorf("Rename(%+v) replaced %+v", r, *e)
		}
	}
	f.names(root, "f", a.Ino)
	f.names(root, "g", a.Ino)
	f.names(d, "h", a.Ino)
	f.nlink(a.Ino, 3)
	f.nlink(root, 3)
}

func testRenameFlags(f *fixture) {
	f.create(root, "f")
	f.create(root, "g")
	tests := []struct {
		from, to string
		flags    metadata.RenameFlags
		want     error
	}{
		{"f", "g", metadata.RenameNoReplace, syscall.EEXIST},
		{"f", "f", metadata.RenameNoReplace, syscall.EEXIST},
		{"none", "g", metadata.RenameNoReplace, syscall.ENOENT},
		{"f", "none", metadata.RenameExchange, syscall.ENOENT},
		{"f", "g", metadata.RenameNoReplace | metadata.RenameExchange, syscall.EINVAL},
		{"f", "g", 4, syscall.EINVAL},
		{"f", "new", metadata.RenameNoReplace, nil},
	}
	for _, tt := range tests {
		_, err := f.s.Rename(ctx, metadata.Rename{Dir: root, Name: tt.from, NewDir: root, NewName: tt.to, Flags: tt.flags})
		f.want(err, tt.want, "Rename(%q, %q, %d)", tt.from, tt.to, tt.flags)
	}
}

func testRenameExchange(f *fixture) {
	d, e := f.mkdir(root, "d").Ino, f.mkdir(root, "e").Ino
	file, sub := f.create(d, "x").Ino, f.mkdir(e, "y").Ino
	f.create(sub, "full")
	swap := func() {
		f.Helper()
		got, err := f.s.Rename(ctx, metadata.Rename{Dir: d, Name: "x", NewDir: e, NewName: "y", Flags: metadata.RenameExchange})
		f.want(err, nil, "Rename exchange")
		if got != nil {
			f.Errorf("exchange replaced %+v", *got)
		}
	}
	swap()
	f.names(d, "x", sub)
	f.names(e, "y", file)
	f.nlink(d, 3)
	f.nlink(e, 2)
	swap()
	f.names(d, "x", file)
	f.names(e, "y", sub)
	f.nlink(d, 2)
	f.nlink(e, 3)
	f.nlink(file, 1)
	_, err := f.s.Rename(ctx, metadata.Rename{Dir: root, Name: "d", NewDir: root, NewName: "e", Flags: metadata.RenameExchange})
	f.want(err, nil, "Rename exchange in one directory")
	f.names(root, "d", e)
	f.names(root, "e", d)
	f.nlink(root, 4)
}
