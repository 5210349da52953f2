package metadatatest

import (
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// far are numbers of inodes whose home is another node.
var (
	farFile = metadata.LiveIno(7, 5000)
	farDir  = metadata.LiveIno(7, 5001)
)

// RunHalves tests the halves of the stores that open returns: each that of
// node 0, with an empty live realm.
func RunHalves(t *testing.T, open func(t *testing.T) metadata.NodeStore) {
	tests := []struct {
		name string
		test func(*halves)
	}{
		{"NewDir", testNewDir},
		{"DropDir", testDropDir},
		{"Enter", testEnter},
		{"EnterReplace", testEnterReplace},
		{"EnterRefuses", testEnterRefuses},
		{"Remove", testRemove},
		{"Relink", testRelink},
		{"FarEntries", testFarEntries},
		{"MkdirByHalves", testMkdirByHalves},
		{"LinkByHalves", testLinkByHalves},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := open(t)
			tt.test(&halves{fixture: fixture{T: t, s: s}, h: s})
		})
	}
}

type halves struct {
	fixture
	h metadata.NodeStore
}

func (f *halves) enter(d metadata.Ino, name string, ino metadata.Ino, mode uint32, replace bool) *metadata.Entry {
	f.Helper()
	e, err := f.h.Enter(ctx, d, metadata.Entry{Name: name, Ino: ino, Mode: mode}, replace)
	f.want(err, nil, "Enter(%v, %q, %v)", d, name, ino)
	return e
}

// far fails the test unless dir names an inode of another node.
func (f *halves) far(d metadata.Ino, name string, ino metadata.Ino, mode uint32) {
	f.Helper()
	e, err := f.h.Lookup(ctx, d, name)
	f.want(err, nil, "Lookup(%v, %q)", d, name)
	if e.Ino != ino || e.Mode&fmtM != mode || e.Attr != nil {
		f.Fatalf("Lookup(%v, %q) = %+v, want %v without attributes", d, name, e, ino)
	}
}

func (f *halves) newDir(parent metadata.Ino) metadata.Attr {
	f.Helper()
	a, err := f.h.NewDir(ctx, parent, metadata.New{Mode: dir | 0o700, UID: 1, GID: 2})
	f.want(err, nil, "NewDir(%v)", parent)
	return a
}

func testNewDir(f *halves) {
	a := f.newDir(farDir)
	if a.Mode != dir|0o700 || a.Nlink != 2 || a.UID != 1 || a.GID != 2 || a.Ino.Home() != 0 {
		f.Errorf("NewDir = %+v", a)
	}
	if got := f.attr(a.Ino); got != a {
		f.Errorf("Getattr = %+v, want %+v", got, a)
	}
	f.nlink(root, 2)
	f.create(a.Ino, "f")
	_, err := f.h.NewDir(ctx, root, metadata.New{Mode: reg | 0o700})
	f.want(err, syscall.EINVAL, "NewDir of a file")
}

func testDropDir(f *halves) {
	a := f.newDir(farDir).Ino
	f.create(a, "f")
	f.want(f.h.DropDir(ctx, a), syscall.ENOTEMPTY, "DropDir of a full directory")
	f.unlink(a, "f")
	f.want(f.h.DropDir(ctx, a), nil, "DropDir")
	f.want(f.h.DropDir(ctx, a), syscall.ENOENT, "second DropDir")
	_, err := f.h.Create(ctx, a, "late", metadata.New{Mode: reg | 0o600})
	f.want(err, syscall.ENOENT, "Create in a dropped directory")
	_, err = f.h.Enter(ctx, a, metadata.Entry{Name: "late", Ino: farFile, Mode: reg}, false)
	f.want(err, syscall.ENOENT, "Enter in a dropped directory")
	f.want(f.h.DropDir(ctx, f.create(root, "f").Ino), syscall.ENOTDIR, "DropDir of a file")
	f.want(f.h.DropDir(ctx, root), syscall.EBUSY, "DropDir of the root")
}

func testEnter(f *halves) {
	f.old(root)
	before := f.attr(root).Ctime
	if e := f.enter(root, "f", farFile, reg|0o644, false); e != nil {
		f.Errorf("Enter replaced %+v", *e)
	}
	f.touched(before, root)
	f.far(root, "f", farFile, reg)
	f.nlink(root, 2)
	f.enter(root, "d", farDir, dir|0o755, false)
	f.far(root, "d", farDir, dir)
	f.nlink(root, 3)
	a, err := f.h.Create(ctx, root, "f", metadata.New{Mode: reg})
	f.want(err, syscall.EEXIST, "Create over a far entry")
	if a.Ino != farFile || a.Mode&fmtM != reg {
		f.Errorf("Create over a far entry = %+v", a)
	}
}

func testEnterReplace(f *halves) {
	near := f.create(root, "f")
	_, err := f.h.Enter(ctx, root, metadata.Entry{Name: "f", Ino: farFile, Mode: reg}, false)
	f.want(err, syscall.EEXIST, "Enter over a name")
	e := f.enter(root, "f", farFile, reg, true)
	if e == nil || e.Ino != near.Ino || e.Name != "f" {
		f.Fatalf("Enter replaced %+v, want %v", e, near.Ino)
	}
	f.nlink(near.Ino, 1) // the caller lowers it
	if e := f.enter(root, "f", farFile, reg, true); e != nil {
		f.Errorf("Enter of what is there replaced %+v", *e)
	}
	f.enter(root, "d", farDir, dir, false)
	e = f.enter(root, "d", farDir+1, dir, true)
	if e == nil || e.Ino != farDir {
		f.Errorf("Enter replaced %+v, want %v", e, farDir)
	}
	f.nlink(root, 3)
	_, err = f.h.Enter(ctx, root, metadata.Entry{Name: "d", Ino: farFile, Mode: reg}, true)
	f.want(err, syscall.EISDIR, "Enter of a file over a directory")
	_, err = f.h.Enter(ctx, root, metadata.Entry{Name: "f", Ino: farDir, Mode: dir}, true)
	f.want(err, syscall.ENOTDIR, "Enter of a directory over a file")
	full := f.mkdir(root, "full").Ino
	f.create(full, "x")
	_, err = f.h.Enter(ctx, root, metadata.Entry{Name: "full", Ino: farDir, Mode: dir}, true)
	f.want(err, syscall.ENOTEMPTY, "Enter over a full directory")
}

func testEnterRefuses(f *halves) {
	file := f.create(root, "f").Ino
	tests := []struct {
		d    metadata.Ino
		e    metadata.Entry
		want error
	}{
		{root, metadata.Entry{Name: "a/b", Ino: farFile, Mode: reg}, syscall.EINVAL},
		{root, metadata.Entry{Name: "a", Mode: reg}, syscall.EINVAL},
		{root, metadata.Entry{Name: "a", Ino: farFile}, syscall.EINVAL},
		{root, metadata.Entry{Name: "a", Ino: metadata.SealedIno(1, 2, 3), Mode: reg}, syscall.EINVAL},
		{file, metadata.Entry{Name: "a", Ino: farFile, Mode: reg}, syscall.ENOTDIR},
		{farDir, metadata.Entry{Name: "a", Ino: farFile, Mode: reg}, syscall.ENOENT},
	}
	for _, tt := range tests {
		_, err := f.h.Enter(ctx, tt.d, tt.e, true)
		f.want(err, tt.want, "Enter(%v, %+v)", tt.d, tt.e)
	}
}

func testRemove(f *halves) {
	near := f.create(root, "f")
	f.enter(root, "d", farDir, dir, false)
	f.want(f.h.Remove(ctx, root, "f", farFile), syscall.ESTALE, "Remove of another inode")
	f.want(f.h.Remove(ctx, root, "none", farFile), syscall.ENOENT, "Remove of nothing")
	f.old(root)
	before := f.attr(root).Ctime
	f.want(f.h.Remove(ctx, root, "f", near.Ino), nil, "Remove")
	f.touched(before, root)
	f.nlink(near.Ino, 1) // no inode changes but the directory's
	f.names(root, "f", 0)
	f.want(f.h.Remove(ctx, root, "d", farDir), nil, "Remove of a directory")
	f.nlink(root, 2)
}

func testRelink(f *halves) {
	a := f.create(root, "f")
	for _, tt := range []struct {
		delta int
		nlink uint32
		want  error
	}{
		{1, 2, nil}, {3, 5, nil}, {-4, 1, nil}, {-2, 1, syscall.EINVAL}, {-1, 0, nil}, {1, 0, syscall.ENOENT}, {-1, 0, syscall.ENOENT},
	} {
		got, err := f.h.Relink(ctx, a.Ino, tt.delta)
		f.want(err, tt.want, "Relink(%+d)", tt.delta)
		if err == nil && got.Nlink != tt.nlink {
			f.Errorf("Relink(%+d) = %+v, want %d links", tt.delta, got, tt.nlink)
		}
		f.nlink(a.Ino, tt.nlink)
	}
	f.want(f.h.Reap(ctx, a.Ino), nil, "Reap")
	_, err := f.h.Relink(ctx, a.Ino, 1)
	f.want(err, syscall.ENOENT, "Relink of nothing")
	_, err = f.h.Relink(ctx, root, 1)
	f.want(err, syscall.EPERM, "Relink of a directory")
}

func testFarEntries(f *halves) {
	f.enter(root, "f", farFile, reg|0o644, false)
	f.enter(root, "d", farDir, dir|0o755, false)
	f.create(root, "near")
	es, err := f.h.ReadDir(ctx, root, "", 10)
	f.want(err, nil, "ReadDir")
	if len(es) != 3 || es[0].Ino != farDir || es[0].Attr != nil || es[1].Ino != farFile || es[1].Attr != nil || es[2].Attr == nil {
		f.Errorf("ReadDir = %+v", es)
	}
	f.rename(root, "f", root, "g")
	f.rename(root, "d", f.mkdir(root, "near dir").Ino, "e")
	f.far(root, "g", farFile, reg)
	f.nlink(root, 3)
	if e := f.rename(root, "near", root, "g"); e == nil || e.Ino != farFile || e.Attr != nil {
		f.Errorf("Rename over a far file replaced %+v", e)
	}
	f.enter(root, "h", farFile, reg, false)
	if e := f.unlink(root, "h"); e.Ino != farFile || e.Attr != nil {
		f.Errorf("Unlink of a far file = %+v", e)
	}
	if got := f.listNames(root); !slices.Equal(got, []string{"g", "near dir"}) {
		f.Errorf("ReadDir = %q", got)
	}
}

func testMkdirByHalves(f *halves) {
	a := f.newDir(root)
	f.enter(root, "d", a.Ino, a.Mode, false)
	f.names(root, "d", a.Ino)
	f.nlink(root, 3)
	f.want(f.h.DropDir(ctx, a.Ino), nil, "DropDir")
	_, err := f.h.Lookup(ctx, root, "d")
	f.want(err, syscall.ENOENT, "Lookup of a dropped directory")
	f.want(f.h.Remove(ctx, root, "d", a.Ino), nil, "Remove")
	f.nlink(root, 2)
}

func testLinkByHalves(f *halves) {
	a := f.create(root, "f")
	_, err := f.h.Relink(ctx, a.Ino, 1)
	f.want(err, nil, "Relink")
	f.enter(root, "g", a.Ino, a.Mode, false)
	f.nlink(a.Ino, 2)
	if e := f.unlink(root, "f"); e.Attr == nil || e.Attr.Nlink != 1 {
		f.Errorf("Unlink = %+v, want 1 link", e)
	}
	f.names(root, "g", a.Ino)
}
