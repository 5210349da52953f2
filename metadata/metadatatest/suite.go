package metadatatest

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// Store is a store under test.
type Store interface {
	metadata.Store
	// Reap removes an orphan at its home, as the home does once no node has it open. It does nothing if ino does not
	// exist or is no orphan.
	Reap(ctx context.Context, ino metadata.Ino) error
}

// Run tests the stores that open returns, each an empty live realm that open closes with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) Store) {
	tests := []struct {
		name string
		test func(*fixture)
	}{
		{"Root", testRoot},
		{"Create", testCreate},
		{"CreateExisting", testCreateExisting},
		{"CreateTypes", testCreateTypes},
		{"GoodNames", testGoodNames},
		{"BadNames", testBadNames},
		{"NoSuchDirectory", testNoSuchDirectory},
		{"NotADirectory", testNotADirectory},
		{"Unlink", testUnlink},
		{"Orphan", testOrphan},
		{"ReadDir", testReadDir},
		{"ReadDirWhileRemoving", testReadDirWhileRemoving},
		{"DirectoryTimes", testDirectoryTimes},
		{"Setattr", testSetattr},
		{"SetattrSize", testSetattrSize},
		{"SetattrRefuses", testSetattrRefuses},
		{"Layout", testLayout},
		{"LayoutInherited", testLayoutInherited},
		{"LayoutRefuses", testLayoutRefuses},
		{"Symlink", testSymlink},
		{"Mkdir", testMkdir},
		{"Rmdir", testRmdir},
		{"Link", testLink},
		{"Setgid", testSetgid},
		{"RenameFile", testRenameFile},
		{"RenameOver", testRenameOver},
		{"RenameDirectory", testRenameDirectory},
		{"RenameSame", testRenameSame},
		{"RenameFlags", testRenameFlags},
		{"RenameExchange", testRenameExchange},
		{"CreateRace", testCreateRace},
		{"DirectoryRace", testDirectoryRace},
		{"RenameRace", testRenameRace},
		{"Model", testModel},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.test(&fixture{T: t, s: open(t)}) })
	}
}

const root = metadata.RootIno

const (
	reg  = syscall.S_IFREG
	dir  = syscall.S_IFDIR
	lnk  = syscall.S_IFLNK
	fmtM = syscall.S_IFMT
)

// fixture is a store under test. Its short methods fail the test if the store fails.
type fixture struct {
	*testing.T
	s Store
}

var ctx = context.Background()

// want fails the test unless err is the errno want; nil is success.
func (f *fixture) want(err error, want error, format string, args ...any) {
	f.Helper()
	if want == nil && err != nil || want != nil && !errors.Is(err, want) {
		f.Fatalf("%s = %v, want %v", fmt.Sprintf(format, args...), err, want)
	}
}

func (f *fixture) create(dir metadata.Ino, name string) metadata.Attr {
	f.Helper()
	a, err := f.s.Create(ctx, dir, name, metadata.New{Mode: reg | 0o644, UID: 1, GID: 2})
	f.want(err, nil, "Create(%v, %q)", dir, name)
	return a
}

func (f *fixture) mkdir(parent metadata.Ino, name string) metadata.Attr {
	f.Helper()
	a, err := f.s.Mkdir(ctx, parent, name, metadata.New{Mode: dir | 0o755, UID: 1, GID: 2})
	f.want(err, nil, "Mkdir(%v, %q)", parent, name)
	return a
}

func (f *fixture) attr(ino metadata.Ino) metadata.Attr {
	f.Helper()
	a, err := f.s.Getattr(ctx, ino)
	f.want(err, nil, "Getattr(%v)", ino)
	return a
}

func (f *fixture) link(ino, dir metadata.Ino, name string) {
	f.Helper()
	_, err := f.s.Link(ctx, ino, dir, name)
	f.want(err, nil, "Link(%v, %v, %q)", ino, dir, name)
}

func (f *fixture) unlink(dir metadata.Ino, name string) metadata.Entry {
	f.Helper()
	e, err := f.s.Unlink(ctx, dir, name)
	f.want(err, nil, "Unlink(%v, %q)", dir, name)
	return e
}

func (f *fixture) rename(dir metadata.Ino, name string, newDir metadata.Ino, newName string) *metadata.Entry {
	f.Helper()
	e, err := f.s.Rename(ctx, metadata.Rename{Dir: dir, Name: name, NewDir: newDir, NewName: newName})
	f.want(err, nil, "Rename(%v/%q, %v/%q)", dir, name, newDir, newName)
	return e
}

// names fails the test unless dir has the entry name for ino; ino 0 is none.
func (f *fixture) names(dir metadata.Ino, name string, ino metadata.Ino) {
	f.Helper()
	e, err := f.s.Lookup(ctx, dir, name)
	if ino == 0 {
		f.want(err, syscall.ENOENT, "Lookup(%v, %q)", dir, name)
		return
	}
	f.want(err, nil, "Lookup(%v, %q)", dir, name)
	f.checkEntry(e)
	if e.Ino != ino || e.Name != name {
		f.Fatalf("Lookup(%v, %q) = %q, %v, want %v", dir, name, e.Name, e.Ino, ino)
	}
}

// checkEntry compares an entry with the inode that it names.
func (f *fixture) checkEntry(e metadata.Entry) {
	f.Helper()
	a := f.attr(e.Ino)
	if e.Attr != nil && *e.Attr != a {
		f.Fatalf("entry %q has %+v, Getattr says %+v", e.Name, *e.Attr, a)
	}
	if e.Mode&fmtM != a.Mode&fmtM {
		f.Fatalf("entry %q has mode %o, Getattr says %o", e.Name, e.Mode, a.Mode)
	}
}

func (f *fixture) nlink(ino metadata.Ino, want uint32) {
	f.Helper()
	if a := f.attr(ino); a.Nlink != want {
		f.Fatalf("Nlink of %v = %d, want %d", ino, a.Nlink, want)
	}
}

// list reads all of dir, limit entries at a time.
func (f *fixture) list(dir metadata.Ino, limit int) []metadata.Entry {
	f.Helper()
	var all []metadata.Entry
	after := ""
	for {
		es, err := f.s.ReadDir(ctx, dir, after, limit)
		f.want(err, nil, "ReadDir(%v, %q, %d)", dir, after, limit)
		if len(es) > limit {
			f.Fatalf("ReadDir(%v, %q, %d) = %d entries", dir, after, limit, len(es))
		}
		all = append(all, es...)
		if len(es) < limit {
			return all
		}
		after = es[limit-1].Name
	}
}

func (f *fixture) listNames(dir metadata.Ino) []string {
	f.Helper()
	names := []string{}
	for _, e := range f.list(dir, 1000) {
		names = append(names, e.Name)
	}
	return names
}

// old sets the times of ino to long ago, so that changes are visible.
func (f *fixture) old(inos ...metadata.Ino) {
	f.Helper()
	for _, ino := range inos {
		_, err := f.s.Setattr(ctx, ino, metadata.Change{Set: metadata.SetAtime | metadata.SetMtime, Atime: 1, Mtime: 1})
		f.want(err, nil, "Setattr(%v)", ino)
	}
}

// touched fails the test unless the times of dir changed since old.
func (f *fixture) touched(before metadata.Time, dirs ...metadata.Ino) {
	f.Helper()
	for _, d := range dirs {
		if a := f.attr(d); a.Mtime == 1 || a.Ctime < before || a.Mtime != a.Ctime {
			f.Fatalf("times of directory %v: mtime %d, ctime %d, want now", d, a.Mtime, a.Ctime)
		}
	}
}
