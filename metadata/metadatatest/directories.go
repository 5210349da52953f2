package metadatatest

import (
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func testMkdir(f *fixture) {
	n := metadata.New{Mode: dir | 0o751, UID: 3, GID: 4, Layout: metadata.Layout{Kind: metadata.Local}}
	a, err := f.s.Mkdir(ctx, root, "d", n)
	f.want(err, nil, "Mkdir")
	if a.Mode != n.Mode || a.Nlink != 2 || a.UID != 3 || a.GID != 4 || a.Layout != n.Layout {
		f.Errorf("Mkdir = %+v", a)
	}
	if got := f.attr(a.Ino); got != a {
		f.Errorf("Getattr = %+v, want %+v", got, a)
	}
	f.names(root, "d", a.Ino)
	f.nlink(root, 3)
	sub := f.mkdir(a.Ino, "sub")
	f.nlink(a.Ino, 3)
	f.nlink(root, 3)
	f.create(sub.Ino, "f")
	f.nlink(sub.Ino, 2)
	bare, err := f.s.Mkdir(ctx, root, "bare", metadata.New{Mode: 0o700})
	if f.want(err, nil, "Mkdir without a type"); bare.Mode != dir|0o700 {
		f.Errorf("Mkdir without a type: mode %o", bare.Mode)
	}
}

func testRmdir(f *fixture) {
	d := f.mkdir(root, "d").Ino
	f.create(root, "f")
	f.create(d, "x")
	f.want(f.s.Rmdir(ctx, root, "d"), syscall.ENOTEMPTY, "Rmdir of a full directory")
	f.unlink(d, "x")
	f.mkdir(d, "sub")
	f.want(f.s.Rmdir(ctx, root, "d"), syscall.ENOTEMPTY, "Rmdir of a full directory")
	f.nlink(root, 3)
	f.want(f.s.Rmdir(ctx, d, "sub"), nil, "Rmdir")
	f.nlink(d, 2)
	f.want(f.s.Rmdir(ctx, root, "d"), nil, "Rmdir")
	f.nlink(root, 2)
	f.names(root, "d", 0)
	f.want(f.s.Rmdir(ctx, root, "d"), syscall.ENOENT, "second Rmdir")
	f.want(f.s.Rmdir(ctx, root, "f"), syscall.ENOTDIR, "Rmdir of a file")
	if again := f.mkdir(root, "d").Ino; again == d {
		f.Errorf("inode number %v is used again", d)
	}
}

func testLink(f *fixture) {
	d := f.mkdir(root, "d").Ino
	a := f.create(root, "f")
	got, err := f.s.Link(ctx, a.Ino, root, "g")
	if f.want(err, nil, "Link"); got.Nlink != 2 || got.Ino != a.Ino || got.Ctime < a.Ctime {
		f.Errorf("Link = %+v, want 2 links", got)
	}
	f.link(a.Ino, d, "h")
	f.nlink(a.Ino, 3)
	f.names(root, "g", a.Ino)
	f.names(d, "h", a.Ino)
	_, err = f.s.Link(ctx, a.Ino, root, "g")
	f.want(err, syscall.EEXIST, "Link over a name")
	_, err = f.s.Link(ctx, a.Ino, root, "d")
	f.want(err, syscall.EEXIST, "Link over a directory")
	_, err = f.s.Link(ctx, d, root, "dd")
	f.want(err, syscall.EPERM, "Link of a directory")
	_, err = f.s.Link(ctx, metadata.LiveIno(0, 1<<40), root, "x")
	f.want(err, syscall.ENOENT, "Link of nothing")
	f.nlink(a.Ino, 3)
	f.unlink(root, "f")
	f.nlink(a.Ino, 2)
	f.want(f.s.Reap(ctx, a.Ino), nil, "Reap of what has names")
	f.unlink(d, "h")
	f.unlink(root, "g")
	f.nlink(a.Ino, 0)
}

func testSetgid(f *fixture) {
	d := f.mkdir(root, "d").Ino
	_, err := f.s.Setattr(ctx, d, metadata.Change{Set: metadata.SetMode | metadata.SetGID, Mode: 0o2775, GID: 50})
	f.want(err, nil, "Setattr setgid")
	if a := f.create(d, "f"); a.GID != 50 || a.Mode != reg|0o644 {
		f.Errorf("file in a setgid directory = %+v, want gid 50", a)
	}
	sub := f.mkdir(d, "sub")
	if sub.GID != 50 || sub.Mode != dir|0o2755 {
		f.Errorf("directory in a setgid directory: gid %d, mode %o, want 50, %o", sub.GID, sub.Mode, dir|0o2755)
	}
	if a := f.create(sub.Ino, "f"); a.GID != 50 {
		f.Errorf("file two directories below: gid %d, want 50", a.GID)
	}
	if a := f.create(root, "f"); a.GID != 2 {
		f.Errorf("file elsewhere: gid %d, want 2", a.GID)
	}
}
