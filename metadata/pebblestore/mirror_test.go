package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestMirror: a copy with the records at some moment, and the batches since, opens as the same home.
func TestMirror(t *testing.T) {
	ctx, fs := context.Background(), vfs.NewMem()
	s, err := Open(Config{Dir: "home", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	file := metadata.New{Mode: syscall.S_IFREG | 0o644}
	create := func(name string) error {
		_, err := s.Create(ctx, metadata.RootIno, name, file)
		return err
	}
	for i := range 100 {
		if err := create(fmt.Sprint("old", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetPartner([]byte("p")); err != nil {
		t.Fatal(err)
	}
	c, err := OpenCopy(Config{Dir: "copy", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	n := byte(0)
	apply := func(b []byte) error { n++; return c.Apply([][]byte{b}, []byte{n}) }
	if err := s.AllRecords(500, apply); err != nil || n < 5 {
		t.Fatalf("AllRecords = %v after %d batches", err, n)
	}
	refuse, made := false, false
	s.SetMirror(func(b []byte) (func(), error) {
		if refuse {
			return nil, syscall.EHOSTDOWN
		}
		if e, err := s.Lookup(ctx, metadata.RootIno, "new"); err == nil && !made {
			t.Errorf("%v is here before the partner has it", e)
		}
		return func() {}, apply(b)
	})
	e, err := s.Lookup(ctx, metadata.RootIno, "old1")
	if err != nil {
		t.Fatal(err)
	}
	x := metadata.Xattr{Name: "user.x", Value: []byte("v")}
	if err := errors.Join(s.Setxattr(ctx, e.Ino, x), create("new")); err != nil {
		t.Fatal(err)
	}
	made = true
	if _, err := s.Unlink(ctx, metadata.RootIno, "old1"); err != nil {
		t.Fatal(err)
	}
	if err := s.Reap(ctx, e.Ino); err != nil { // removes a range
		t.Fatal(err)
	}
	refuse = true
	if err := create("refused"); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("create without the partner = %v, want EHOSTDOWN", err)
	}
	if _, err := s.Lookup(ctx, metadata.RootIno, "refused"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("lookup of what was refused = %v, want ENOENT", err)
	}
	if state, err := c.State(); err != nil || len(state) != 1 || state[0] != n {
		t.Errorf("State = %x, %v, want %x", state, err, n)
	}
	if err := errors.Join(c.Sync(), c.Close()); err != nil {
		t.Fatal(err)
	}
	opened, err := Open(Config{Dir: "copy", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	want, err := s.ReadDir(ctx, metadata.RootIno, "", 1000)
	if err != nil {
		t.Fatal(err)
	}
	got, err := opened.ReadDir(ctx, metadata.RootIno, "", 1000)
	if err != nil || fmt.Sprint(names(got)) != fmt.Sprint(names(want)) || len(got) != 100 {
		t.Errorf("the copy has %v, %v, want %v", names(got), err, names(want))
	}
	for i := range want {
		if *got[i].Attr != *want[i].Attr {
			t.Errorf("%s has %+v, want %+v", want[i].Name, *got[i].Attr, *want[i].Attr)
		}
	}
	if p, err := opened.Partner(); p != nil || err != nil {
		t.Errorf("the copy has a partner: %q, %v", p, err)
	}
	a, err := opened.Create(ctx, metadata.RootIno, "later", file)
	if err != nil || a.Ino.Counter() < uint64(metadata.FirstIno)+reserve {
		t.Errorf("new inode %v, %v: its number may have been used", a.Ino, err)
	}
}

func names(es []metadata.Entry) []string {
	all := make([]string, len(es))
	for i, e := range es {
		all[i] = e.Name
	}
	return all
}

// TestDamagedChanges: invalid changes are refused without any effect.
func TestDamagedChanges(t *testing.T) {
	c, err := OpenCopy(Config{Dir: filepath.Join("x"), FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	b := c.db.NewBatch()
	defer b.Close()
	if err := b.Set([]byte("key"), []byte("value"), nil); err != nil {
		t.Fatal(err)
	}
	good := append([]byte(nil), b.Repr()...)
	for _, bad := range [][]byte{nil, {1}, good[:len(good)-1], append(append([]byte(nil), good...), 200)} {
		if err := c.Apply([][]byte{good, bad}, []byte{1}); err == nil {
			t.Errorf("%x was applied", bad)
		}
	}
	if s, err := c.State(); s != nil || err != nil {
		t.Errorf("State = %x, %v", s, err)
	}
}

// TestDamaged: damage is detected by this package's errors, which are also EIO; a failed read is not damage.
func TestDamaged(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{ioError("copy", fmt.Errorf("table: %w", pebble.ErrCorruption)), true},
		{errors.Join(ioError("copy", pebble.ErrCorruption), syscall.EBADF), true},
		{ioError("copy", syscall.EIO), false},
		{ioError("copy", syscall.ENOSPC), false},
	} {
		if got := Damaged(c.err); got != c.want {
			t.Errorf("Damaged(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}

// TestCopyIsSmall: a copy takes little more space than its records, although each log is preallocated.
func TestCopyIsSmall(t *testing.T) {
	dir := t.TempDir()
	c, err := OpenCopy(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 64 {
		if err := c.Apply(nil, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	taken := int64(0)
	for _, f := range files {
		var st syscall.Stat_t
		if err := syscall.Stat(f, &st); err != nil {
			t.Fatal(err)
		}
		taken += st.Blocks * 512
	}
	if taken > 20<<20 {
		t.Errorf("%d logs take %d MiB", len(files), taken>>20)
	}
}

// TestAbortBesideIntent: an intent that waits for the partner when its transaction is aborted is removed in the end.
func TestAbortBesideIntent(t *testing.T) {
	ctx, s := context.Background(), open(t, Config{})
	tx := metadata.TxID(metadata.LiveIno(3, 2000))
	begun, partner := make(chan struct{}), make(chan struct{})
	var batches atomic.Int32
	s.SetMirror(func([]byte) (func(), error) {
		if batches.Add(1) == 1 {
			close(begun)
			<-partner
		}
		return func() {}, nil
	})
	voted := make(chan error, 1)
	go func() {
		_, err := s.Prepare(ctx, tx, []metadata.Edit{{Kind: metadata.EditEnter, Dir: metadata.RootIno, Name: "g", Ino: metadata.LiveIno(3, 2001), Mode: syscall.S_IFREG}})
		voted <- err
	}()
	<-begun
	if doubts := s.InDoubt(); len(doubts) > 0 {
		t.Errorf("in doubt before it is prepared: %v", doubts)
	}
	if err := s.Abort(ctx, tx); err != nil {
		t.Fatal(err)
	}
	close(partner)
	if err := <-voted; err != nil {
		t.Fatal(err)
	}
	for _, d := range s.InDoubt() { // as the coordinator answers
		if err := s.Abort(ctx, d.Tx); err != nil {
			t.Fatal(err)
		}
	}
	if is, err := s.Inventory(ctx); err != nil || len(is.Open) > 0 {
		t.Errorf("transactions without an end: %v, %v", is.Open, err)
	}
}
