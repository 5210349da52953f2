package pebblestore

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/metadatatest"
	"github.com/bivouacfs/bivouac/metadata/txn"
)

func open(t testing.TB, cfg Config) *Store {
	t.Helper()
	if cfg.Dir == "" {
		cfg.Dir = "meta"
	}
	if cfg.FS == nil {
		cfg.FS = vfs.NewMem()
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

// whole is the store of a single-node job.
type whole struct {
	*txn.Coordinator // hides what Store alone does
	stored
}

type stored struct{ *Store }

func openWhole(t testing.TB, cfg Config) whole {
	t.Helper()
	s := open(t, cfg)
	c, err := txn.New(txn.Config{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	return whole{c, stored{s}}
}

func TestConformance(t *testing.T) {
	metadatatest.Run(t, func(t *testing.T) metadatatest.Store { return openWhole(t, Config{}) })
}

func TestParticipant(t *testing.T) {
	metadatatest.RunParticipant(t, func(t *testing.T) metadatatest.Participant { return open(t, Config{}) })
}

func TestXattrs(t *testing.T) {
	metadatatest.RunXattrs(t, func(t *testing.T) metadatatest.XattrStore { return open(t, Config{}) })
}

func TestRoot(t *testing.T) {
	at := time.Unix(100, 5)
	fs := vfs.NewMem()
	cfg := Config{Dir: "m", FS: fs, UID: 1000, GID: 1001, RootMode: 0o750, Now: func() time.Time { return at }}
	want := metadata.Attr{
		Ino: metadata.RootIno, Mode: dir | 0o750, Nlink: 2, UID: 1000, GID: 1001,
		Atime: metadata.TimeOf(at), Mtime: metadata.TimeOf(at), Ctime: metadata.TimeOf(at),
	}
	for range 2 {
		s, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		if a, err := s.Getattr(ctx, metadata.RootIno); err != nil || a != want {
			t.Errorf("root = %+v, %v, want %+v", a, err, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		cfg.UID, cfg.RootMode, at = 5, 0o700, time.Unix(200, 0) // ignored for an existing root
	}
	other := open(t, Config{Self: 1})
	if _, err := other.Getattr(ctx, metadata.RootIno); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("root on node 1: %v, want ENOENT", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open(Config{Dir: "m", FS: fs, Self: 3})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: "m", FS: fs, Self: 3}); err == nil {
		t.Error("second Open at once succeeded")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []Config{{FS: fs}, {Dir: "m", FS: fs, Self: 4}, {Dir: "n", FS: fs, Self: metadata.MaxNodes}} {
		if s, err := Open(cfg); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Open(%+v) = %v, %v, want EINVAL", cfg, s, err)
		}
	}
}

func TestClosed(t *testing.T) {
	s := open(t, Config{})
	tab := s.Table(1)
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	_, err1 := s.Getattr(ctx, metadata.RootIno)
	_, err2 := s.Create(ctx, metadata.RootIno, "f", metadata.New{})
	_, err3 := tab.Get([]byte("k"))
	for i, err := range []error{err1, err2, err3, s.Sync(ctx), tab.Drop(), tab.Scan(nil, nil, nil), tab.Ingest(ctx, nil), s.Orphans(ctx, nil)} {
		if !errors.Is(err, syscall.ESHUTDOWN) {
			t.Errorf("call %d after Close = %v, want ESHUTDOWN", i, err)
		}
	}
}

// enter commits a transaction that adds an entry for an inode of another node.
func enter(t testing.TB, s *Store, d metadata.Ino, name string, ino metadata.Ino, mode uint32) {
	t.Helper()
	tx := metadata.TxID(metadata.LiveIno(7, uint64(ino.Counter())))
	edits := []metadata.Edit{{Kind: metadata.EditEnter, Dir: d, Name: name, Ino: ino, Mode: mode}}
	if _, err := s.Prepare(ctx, tx, edits); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(ctx, tx); err != nil {
		t.Fatal(err)
	}
}

// TestOtherHome: an operation that involves another home fails with EXDEV and has no effect.
func TestOtherHome(t *testing.T) {
	s := open(t, Config{})
	root, far := metadata.RootIno, metadata.LiveIno(2, 4000)
	if _, err := s.Create(ctx, root, "f", metadata.New{}); err != nil {
		t.Fatal(err)
	}
	enter(t, s, root, "far", far, dir)
	enter(t, s, root, "far file", far+1, reg)
	near, err := s.Mkdir(ctx, root, "near", metadata.New{})
	if err != nil {
		t.Fatal(err)
	}
	_, link := s.Link(ctx, metadata.LiveIno(2, 5000), root, "l")
	_, into := s.Rename(ctx, metadata.Rename{Dir: root, Name: "f", NewDir: far, NewName: "f"})
	_, from := s.Rename(ctx, metadata.Rename{Dir: far, Name: "f", NewDir: root, NewName: "g"})
	_, over := s.Rename(ctx, metadata.Rename{Dir: root, Name: "near", NewDir: root, NewName: "far"})
	_, what := s.Rename(ctx, metadata.Rename{Dir: root, Name: "far file", NewDir: root, NewName: "f"})
	_, unlink := s.Unlink(ctx, root, "far file")
	sub, err := s.Mkdir(ctx, near.Ino, "sub", metadata.New{})
	if err != nil {
		t.Fatal(err)
	}
	_, move := s.Rename(ctx, metadata.Rename{Dir: near.Ino, Name: "sub", NewDir: root, NewName: "sub"})
	for what, err := range map[string]error{
		"Link": link, "Rename into it": into, "Rename over it": over, "Rename of it": what,
		"Unlink": unlink, "Rmdir": s.Rmdir(ctx, root, "far"), "move of a directory": move,
	} {
		if !errors.Is(err, syscall.EXDEV) {
			t.Errorf("%s = %v, want EXDEV", what, err)
		}
	}
	if !errors.Is(from, syscall.EREMOTE) {
		t.Errorf("Rename from it = %v, want EREMOTE", from)
	}
	es, err := s.ReadDir(ctx, root, "", 10)
	if err != nil || len(es) != 4 || es[3].Ino != near.Ino {
		t.Errorf("ReadDir = %+v, %v", es, err)
	}
	if e, err := s.Lookup(ctx, near.Ino, "sub"); err != nil || e.Ino != sub.Ino {
		t.Errorf("Lookup of the directory that did not move = %+v, %v", e, err)
	}
}

// TestRenameBelowItself: a loop is refused, also through directories that were moved; a directory that was moved away
// is no obstacle.
func TestRenameBelowItself(t *testing.T) {
	s := openWhole(t, Config{})
	mk := func(d metadata.Ino, name string) metadata.Ino {
		t.Helper()
		a, err := s.Mkdir(ctx, d, name, metadata.New{})
		if err != nil {
			t.Fatal(err)
		}
		return a.Ino
	}
	root := metadata.RootIno
	a := mk(root, "a")
	b := mk(a, "b")
	c := mk(b, "c")
	mk(root, "x")
	mv := func(d metadata.Ino, name string, to metadata.Ino, newName string, flags metadata.RenameFlags, want error) {
		t.Helper()
		_, err := s.Rename(ctx, metadata.Rename{Dir: d, Name: name, NewDir: to, NewName: newName, Flags: flags})
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("Rename(%v/%s, %v/%s) = %v, want %v", d, name, to, newName, err, want)
		}
	}
	mv(root, "a", a, "self", 0, syscall.EINVAL)
	mv(root, "a", b, "self", 0, syscall.EINVAL)
	mv(root, "a", c, "self", 0, syscall.EINVAL)
	mv(root, "a", b, "c", metadata.RenameExchange, syscall.EINVAL)
	mv(b, "c", root, "a", metadata.RenameExchange, syscall.EINVAL)
	mv(b, "c", root, "a", 0, syscall.ENOTEMPTY)
	mv(a, "b", root, "b", 0, nil)
	mv(root, "a", c, "a", 0, nil)
	mv(root, "b", a, "b", 0, syscall.EINVAL)
	mv(root, "b", root, "x", metadata.RenameExchange, nil)
	mv(root, "x", c, "deep", 0, syscall.EINVAL)
	check(t, s.Store)
}

func TestSetattrClock(t *testing.T) {
	at := time.Unix(1000, 0)
	s := open(t, Config{Now: func() time.Time { return at }})
	a, err := s.Create(ctx, metadata.RootIno, "f", metadata.New{})
	if err != nil {
		t.Fatal(err)
	}
	at = time.Unix(2000, 0)
	for _, c := range []metadata.Change{
		{Set: metadata.SetMode}, {Set: metadata.GrowSize}, {Set: metadata.SetAtime, Atime: 7}, {},
	} {
		at = at.Add(time.Second)
		if a, err = s.Setattr(ctx, a.Ino, c); err != nil || a.Ctime != metadata.TimeOf(at) {
			t.Errorf("Setattr(%+v): ctime %v, %v, want %v", c, a.Ctime, err, at)
		}
	}
	if a.Mtime != metadata.TimeOf(time.Unix(1000, 0)) || a.Atime != 7 {
		t.Errorf("times = %+v", a)
	}
}

func TestDamagedRecords(t *testing.T) {
	s := open(t, Config{})
	a, err := s.Create(ctx, metadata.RootIno, "f", metadata.New{})
	if err != nil {
		t.Fatal(err)
	}
	set := func(k, v []byte) {
		t.Helper()
		if err := s.db.Set(k, v, nil); err != nil {
			t.Fatal(err)
		}
	}
	eio := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, syscall.EIO) {
			t.Errorf("%s = %v, want EIO", what, err)
		}
	}
	if err := s.db.Delete(inodeKey(a.Ino), nil); err != nil {
		t.Fatal(err)
	}
	_, err = s.Lookup(ctx, metadata.RootIno, "f")
	eio("Lookup of a lost inode", err)
	set(inodeKey(a.Ino), []byte{9, 9})
	_, err = s.Getattr(ctx, a.Ino)
	eio("Getattr", err)
	set(entryKey(metadata.RootIno, "f"), []byte("short"))
	_, err = s.Lookup(ctx, metadata.RootIno, "f")
	eio("Lookup", err)
	_, err = s.ReadDir(ctx, metadata.RootIno, "", 5)
	eio("ReadDir", err)
	_, err = s.Unlink(ctx, metadata.RootIno, "f")
	eio("Unlink", err)
}

func BenchmarkCreate(b *testing.B) {
	for _, sync := range []bool{false, true} {
		name := "written"
		if sync {
			name = "synced"
		}
		b.Run(name, func(b *testing.B) {
			s := open(b, Config{Dir: b.TempDir(), FS: vfs.Default, Sync: sync})
			var buf [16]byte
			for i := 0; b.Loop(); i++ {
				for j := range buf {
					buf[j] = 'a' + byte(i>>(4*j)&15)
				}
				if _, err := s.Create(ctx, metadata.RootIno, string(buf[:]), metadata.New{Mode: 0o644}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestDirectoryWhenClockIsSetBack: each change of a directory's entries gets later times than the previous one. A
// created or removed file has the same st_ctime, from which its client knows the directory's times.
func TestDirectoryWhenClockIsSetBack(t *testing.T) {
	at := time.Unix(1000, 0)
	s := open(t, Config{Now: func() time.Time { return at }})
	was, err := s.Getattr(ctx, metadata.RootIno)
	if err != nil {
		t.Fatal(err)
	}
	check := func(what string, file *metadata.Attr, err error) {
		t.Helper()
		d, derr := s.Getattr(ctx, metadata.RootIno)
		if err != nil || derr != nil || d.Mtime <= was.Mtime || d.Ctime <= was.Ctime || d.Mtime != d.Ctime || file.Ctime != d.Ctime {
			t.Errorf("%s: times %v and %v, %v, %v, want later than %v, and st_ctime of the file as well: %v", what, d.Mtime, d.Ctime, err, derr, was.Mtime, file.Ctime)
		}
		was = d
	}
	for _, back := range []time.Duration{0, time.Hour, time.Hour} {
		at = at.Add(-back)
		a, err := s.Create(ctx, metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
		check("create", &a, err)
		if back == 0 { // the file has a later time than the directory
			_, err := s.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.SetMode, Mode: 0o600})
			if err != nil {
				t.Fatal(err)
			}
		}
		e, err := s.Unlink(ctx, metadata.RootIno, "f")
		if err != nil {
			t.Fatal(err)
		}
		check("unlink", e.Attr, err)
	}
}

// TestClockThatStands: each change of an inode gets a later time than the previous one, even for writes while the clock
// stands still.
func TestClockThatStands(t *testing.T) {
	at := time.Unix(1000, 0)
	s := open(t, Config{Now: func() time.Time { return at }})
	a, err := s.Create(ctx, metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		b, err := s.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.GrowSize | metadata.MtimeNow, Size: 10})
		if err != nil || b.Ctime <= a.Ctime || b.Mtime <= a.Mtime {
			t.Errorf("write %d: times %v and %v, %v, want later than %v and %v", i, b.Mtime, b.Ctime, err, a.Mtime, a.Ctime)
		}
		a = b
		if i == 2 {
			at = at.Add(-time.Millisecond)
		}
	}
	back, err := s.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.SetMtime, Mtime: 5})
	if err != nil || back.Ctime <= a.Ctime || back.Mtime != 5 {
		t.Errorf("a time that is set: %v and %v, %v", back.Mtime, back.Ctime, err)
	}
	at = at.Add(-time.Hour)
	if a, err = s.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.MtimeNow}); err != nil || a.Mtime != metadata.TimeOf(at) {
		t.Errorf("a clock that was set back: %v, %v, want %v", a.Mtime, err, metadata.TimeOf(at))
	}
	changes := map[string]func() error{
		"link": func() error { _, err := s.Link(ctx, a.Ino, metadata.RootIno, "g"); return err },
		"rename": func() error {
			_, err := s.Rename(ctx, metadata.Rename{Dir: metadata.RootIno, Name: "g", NewDir: metadata.RootIno, NewName: "h"})
			return err
		},
		"unlink": func() error { _, err := s.Unlink(ctx, metadata.RootIno, "h"); return err },
		"xattr":  func() error { return s.Setxattr(ctx, a.Ino, metadata.Xattr{Name: "user.a"}) },
		"write": func() error {
			_, err := s.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.GrowSize, Size: 20})
			return err
		},
	}
	for _, what := range []string{"link", "rename", "unlink", "xattr", "write"} {
		err := changes[what]()
		b, aerr := s.Getattr(ctx, a.Ino)
		if err != nil || aerr != nil || b.Ctime <= back.Ctime {
			t.Errorf("%s with a clock that was set back: ctime %v, %v, %v, want later than %v", what, b.Ctime, err, aerr, back.Ctime)
		}
		back = b
	}
}
