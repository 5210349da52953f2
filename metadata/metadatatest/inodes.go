package metadatatest

import (
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func testSetattr(f *fixture) {
	file := f.create(root, "f")
	f.old(file.Ino)
	want := f.attr(file.Ino)
	tests := []struct {
		name  string
		c     metadata.Change
		apply func(a *metadata.Attr)
	}{
		{"mode", metadata.Change{Set: metadata.SetMode, Mode: 0o4751}, func(a *metadata.Attr) { a.Mode = reg | 0o4751 }},
		{"setuid alone", metadata.Change{Set: metadata.SetMode, Mode: 0o6741}, func(a *metadata.Attr) { a.Mode = reg | 0o6741 }},
		{"without setuid", metadata.Change{Set: metadata.DropSetIDs, Mode: 0o777}, func(a *metadata.Attr) { a.Mode = reg | 0o2741 }},
		{"setuid and setgid", metadata.Change{Set: metadata.SetMode, Mode: 0o7751}, func(a *metadata.Attr) { a.Mode = reg | 0o7751 }},
		{"uid without both", metadata.Change{Set: metadata.SetUID | metadata.DropSetIDs, UID: 76}, func(a *metadata.Attr) { a.UID, a.Mode = 76, reg|0o1751 }},
		{"mode and without", metadata.Change{Set: metadata.SetMode | metadata.DropSetIDs, Mode: 0o4711}, func(a *metadata.Attr) { a.Mode = reg | 0o4711 }},
		{"mode with a type", metadata.Change{Set: metadata.SetMode, Mode: dir | 0o600}, func(a *metadata.Attr) { a.Mode = reg | 0o600 }},
		{"uid", metadata.Change{Set: metadata.SetUID, UID: 77, GID: 5}, func(a *metadata.Attr) { a.UID = 77 }},
		{"gid", metadata.Change{Set: metadata.SetGID, UID: 5, GID: 78}, func(a *metadata.Attr) { a.GID = 78 }},
		{"atime", metadata.Change{Set: metadata.SetAtime, Atime: 12, Mtime: 9}, func(a *metadata.Attr) { a.Atime = 12 }},
		{"mtime", metadata.Change{Set: metadata.SetMtime, Atime: 9, Mtime: -13}, func(a *metadata.Attr) { a.Mtime = -13 }},
		{"nothing", metadata.Change{Mode: 1, UID: 1, Size: 9}, func(*metadata.Attr) {}},
	}
	for _, tt := range tests {
		before := want.Ctime
		got, err := f.s.Setattr(ctx, file.Ino, tt.c)
		f.want(err, nil, "Setattr %s", tt.name)
		tt.apply(&want)
		want.Ctime, want.Before = got.Ctime, before
		if got != want || got.Ctime < before {
			f.Errorf("Setattr %s = %+v, want %+v", tt.name, got, want)
		}
		got.Before, want.Before = 0, 0
		if a := f.attr(file.Ino); a != got {
			f.Errorf("Getattr after %s = %+v, want %+v", tt.name, a, got)
		}
	}
	got, err := f.s.Setattr(ctx, file.Ino, metadata.Change{Set: metadata.AtimeNow | metadata.MtimeNow, Atime: 1, Mtime: 1})
	if f.want(err, nil, "Setattr now"); got.Atime != got.Ctime || got.Mtime != got.Ctime {
		f.Errorf("Setattr now = %+v, want all times the same", got)
	}
	f.names(root, "f", file.Ino)
}

func testSetattrSize(f *fixture) {
	ino := f.create(root, "f").Ino
	tests := []struct {
		set  metadata.Set
		size int64
		want int64
	}{
		{metadata.GrowSize, 100, 100},
		{metadata.GrowSize, 50, 100},
		{metadata.GrowSize, 1 << 45, 1 << 45},
		{metadata.SetSize, 70, 70},
		{metadata.SetSize, 0, 0},
		{metadata.SetSize, 9, 9},
		{metadata.GrowSize | metadata.MtimeNow, 10, 10},
	}
	for _, tt := range tests {
		f.old(ino)
		a, err := f.s.Setattr(ctx, ino, metadata.Change{Set: tt.set, Size: tt.size})
		f.want(err, nil, "Setattr(%#x, %d)", tt.set, tt.size)
		if a.Size != tt.want {
			f.Errorf("Setattr(%#x, %d): size %d, want %d", tt.set, tt.size, a.Size, tt.want)
		}
		if now := tt.set != metadata.GrowSize; (a.Mtime != 1) != now {
			f.Errorf("Setattr(%#x, %d): mtime %d, want it changed: %v", tt.set, tt.size, a.Mtime, now)
		}
	}
	a, err := f.s.Setattr(ctx, ino, metadata.Change{Set: metadata.SetSize | metadata.SetMtime, Size: 3, Mtime: 44})
	if f.want(err, nil, "Setattr size and mtime"); a.Size != 3 || a.Mtime != 44 {
		f.Errorf("Setattr size and mtime = %+v", a)
	}
}

func testSetattrRefuses(f *fixture) {
	file, d := f.create(root, "f").Ino, f.mkdir(root, "d").Ino
	sym, err := f.s.Create(ctx, root, "s", metadata.New{Mode: lnk | 0o777, Target: "t"})
	f.want(err, nil, "Create of a symbolic link")
	tests := []struct {
		name string
		ino  metadata.Ino
		c    metadata.Change
		want error
	}{
		{"size of a directory", d, metadata.Change{Set: metadata.SetSize}, syscall.EISDIR},
		{"growth of a directory", d, metadata.Change{Set: metadata.GrowSize}, syscall.EISDIR},
		{"size of a symbolic link", sym.Ino, metadata.Change{Set: metadata.SetSize}, syscall.EINVAL},
		{"negative size", file, metadata.Change{Set: metadata.SetSize, Size: -1}, syscall.EINVAL},
		{"unknown field", file, metadata.Change{Set: 1 << 30}, syscall.EINVAL},
		{"layout of a file", file, metadata.Change{Set: metadata.SetLayout}, syscall.EINVAL},
		{"mode and negative size", file, metadata.Change{Set: metadata.SetMode | metadata.SetSize, Mode: 0o777, Size: -1}, syscall.EINVAL},
		{"no such inode", metadata.LiveIno(0, 1<<40), metadata.Change{Set: metadata.SetMode}, syscall.ENOENT},
	}
	for _, tt := range tests {
		_, err := f.s.Setattr(ctx, tt.ino, tt.c)
		f.want(err, tt.want, "Setattr %s", tt.name)
	}
	if a := f.attr(file); a.Mode != reg|0o644 || a.Size != 0 {
		f.Errorf("file after refused changes = %+v", a)
	}
}

func testSymlink(f *fixture) {
	for _, target := range []string{"t", "/abs/x", "../..", "odd\n\xff", strings.Repeat("x", 4095)} {
		a, err := f.s.Create(ctx, root, "s", metadata.New{Mode: lnk | 0o777, Target: target})
		f.want(err, nil, "Create of a link to %.9q", target)
		if a.Size != int64(len(target)) || a.Mode&fmtM != lnk {
			f.Errorf("link to %.9q = %+v", target, a)
		}
		got, err := f.s.Readlink(ctx, a.Ino)
		if f.want(err, nil, "Readlink"); got != target {
			f.Errorf("Readlink = %.9q, want %.9q", got, target)
		}
		f.link(a.Ino, root, "hard")
		f.unlink(root, "s")
		f.unlink(root, "hard")
	}
	for target, want := range map[string]error{
		"": syscall.ENOENT, strings.Repeat("x", 4096): syscall.ENAMETOOLONG, "a\x00b": syscall.EINVAL,
	} {
		_, err := f.s.Create(ctx, root, "bad", metadata.New{Mode: lnk | 0o777, Target: target})
		f.want(err, want, "Create of a link to %.9q", target)
	}
	for _, ino := range []metadata.Ino{root, f.create(root, "f").Ino} {
		_, err := f.s.Readlink(ctx, ino)
		f.want(err, syscall.EINVAL, "Readlink of what is no link")
	}
	_, err := f.s.Readlink(ctx, metadata.LiveIno(0, 1<<40))
	f.want(err, syscall.ENOENT, "Readlink of nothing")
}
