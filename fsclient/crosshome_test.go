package fsclient_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// dirOn creates a directory whose home is node id.
func dirOn(t *testing.T, c *fsclient.Client, id metadata.NodeID) metadata.Ino {
	t.Helper()
	for i := range 1000 {
		a, err := c.Mkdir(ctx, metadata.RootIno, fmt.Sprint("on", id, "-", i), metadata.New{Mode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
		if a.Ino.Home() == id {
			return a.Ino
		}
	}
	t.Fatalf("no directory with its home on node %d", id)
	return 0
}

func TestRenameAcrossHomes(t *testing.T) {
	j := newJob(t, 3)
	c := j.clients[0]
	d1, d2 := dirOn(t, c, 1), dirOn(t, c, 2)
	a, old := create(t, c, d1, "f", 3<<20), create(t, c, d2, "old", 5<<20)
	before := j.objects(t)

	_, err := c.Rename(ctx, metadata.Rename{Dir: d1, Name: "f", NewDir: d2, NewName: "old", Flags: metadata.RenameNoReplace})
	if !errors.Is(err, syscall.EEXIST) {
		t.Fatalf("Rename without replacing = %v, want EEXIST", err)
	}
	e, err := c.Rename(ctx, metadata.Rename{Dir: d1, Name: "f", NewDir: d2, NewName: "old"})
	if err != nil || e == nil || e.Ino != old.Ino || e.Attr == nil || e.Attr.Nlink != 0 {
		t.Fatalf("Rename = %+v, %v, want the orphan %v", e, err, old.Ino)
	}
	j.gone(t, old.Ino)
	if got := j.objects(t); got >= before {
		t.Errorf("%d objects after the rename, %d before", got, before)
	}
	got, err := c.Lookup(ctx, d2, "old")
	if err != nil || got.Ino != a.Ino || got.Attr.Nlink != 1 {
		t.Errorf("Lookup of the new name = %+v, %v, want %v with 1 link", got, err, a.Ino)
	}
	if _, err := c.Lookup(ctx, d1, "f"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Lookup of the old name = %v, want ENOENT", err)
	}
	if _, err := c.Getattr(ctx, old.Ino); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Getattr of the replaced file = %v, want ENOENT", err)
	}
}

func TestRenameToOtherNameOfTheFile(t *testing.T) {
	j := newJob(t, 3)
	c := j.clients[0]
	d1, d2 := dirOn(t, c, 1), dirOn(t, c, 2)
	a := create(t, c, d1, "f", 10)
	if _, err := c.Link(ctx, a.Ino, d2, "g"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Rename(ctx, metadata.Rename{Dir: d1, Name: "f", NewDir: d2, NewName: "g"}); err != nil {
		t.Fatal(err)
	}
	for dir, name := range map[metadata.Ino]string{d1: "f", d2: "g"} {
		if e, err := c.Lookup(ctx, dir, name); err != nil || e.Ino != a.Ino || e.Attr.Nlink != 2 {
			t.Errorf("Lookup(%q) = %+v, %v, want %v with 2 links", name, e, err, a.Ino)
		}
	}
}

// TestLinksOnOtherNodes: an inode keeps its data while a directory on any node names it.
func TestLinksOnOtherNodes(t *testing.T) {
	j := newJob(t, 3)
	c := j.clients[0]
	d1, d2 := dirOn(t, c, 1), dirOn(t, c, 2)
	a := create(t, c, d1, "f", 100)
	if _, err := c.Link(ctx, a.Ino, d2, "g"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Link(ctx, a.Ino, d2, "g"); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("second Link = %v, want EEXIST", err)
	}
	for i, want := range []uint32{1, 0} {
		dir, name := d1, "f"
		if i == 1 {
			dir, name = d2, "g"
		}
		e, err := c.Unlink(ctx, dir, name)
		if err != nil || e.Attr == nil || e.Attr.Nlink != want {
			t.Fatalf("Unlink(%q) = %+v, %v, want %d links", name, e, err, want)
		}
	}
	j.gone(t, a.Ino)
	j.noObjects(t)
	if _, err := c.Getattr(ctx, a.Ino); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Getattr = %v, want ENOENT", err)
	}
}

// TestLinkOfWrittenFile: the reply to a link includes the size from the writes of this node.
func TestLinkOfWrittenFile(t *testing.T) {
	j := newJob(t, 3)
	c := j.clients[1]
	for on := range metadata.NodeID(3) {
		f := onNode(t, c, fmt.Sprint("f", on), on)
		dir := dirOn(t, c, on)
		w := f.Writer()
		for i := range int64(3) {
			if _, err := w.WriteAt(ctx, pattern(1000), i*1000); err != nil { // the second is buffered
				t.Fatal(err)
			}
			a, err := c.Link(ctx, f.Ino(), dir, fmt.Sprint("g", i))
			if want := (i + 1) * 1000; err != nil || a.Size != want || a.Nlink != uint32(i+2) {
				t.Errorf("linked to node %d: %d bytes and %d links, %v, want %d and %d", on, a.Size, a.Nlink, err, want, i+2)
			}
		}
		if err := f.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}
