package chunkstore

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

var whole = metadata.SealedIno(1, 2, 3)

// linkOf returns the content of the link to an object in the only store directory.
func linkOf(s *Store, i metadata.Ino) ([]byte, error) {
	return os.ReadFile(s.places[0].wholePath(i))
}

// linked links the current object of i.
func linked(t *testing.T, s *Store, i metadata.Ino) {
	t.Helper()
	f, err := s.Open(i)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // opened read-only
	if err := s.LinkWhole(ctx, i, f); err != nil {
		t.Fatal(err)
	}
}

// TestLinkWhole: an object gets a link only on request; the link is removed with the object, also in a later run, and
// takes no space.
func TestLinkWhole(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dirs: []string{dir}})
	want := []byte("all of it")
	if err := s.WriteAt(ctx, whole, want, 0); err != nil {
		t.Fatal(err)
	}
	if b, err := linkOf(s, whole); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("an incomplete object is linked: %q, %v", b, err)
	}
	for range 2 {
		linked(t, s, whole)
		if b, err := linkOf(s, whole); err != nil || !bytes.Equal(b, want) || !s.Linked(whole) {
			t.Fatalf("the link has %q, %v", b, err)
		}
	}
	if err := s.Unlink(whole); err != nil || s.Linked(whole) {
		t.Fatalf("a link that was removed is there: %v", err)
	}
	if err := s.LinkWhole(ctx, whole, nil); err != nil || !s.Linked(whole) {
		t.Fatalf("no link to the object that is there: %v", err)
	}
	wantSpace(t, s, block, 1)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Dirs: []string{dir}})
	wantSpace(t, s, block, 1)
	if err := s.Remove(ctx, whole); err != nil {
		t.Fatal(err)
	}
	if b, err := linkOf(s, whole); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link of a removed object has %q, %v", b, err)
	}
	wantSpace(t, s, 0, 0)
}

// TestLinkReplaced: data written in place of a whole object is not linked.
func TestLinkReplaced(t *testing.T) {
	s := open(t, Config{})
	write(t, s, whole, 2*block, 0)
	f, err := s.Open(whole)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // opened read-only
	if err := s.Remove(ctx, whole); err != nil {
		t.Fatal(err)
	}
	if err := s.LinkWhole(ctx, whole, f); err != nil {
		t.Errorf("link of an object that was removed: %v", err)
	}
	write(t, s, whole, 1, 0)
	if err := s.LinkWhole(ctx, whole, f); err != nil {
		t.Errorf("link of an object that was replaced: %v", err)
	}
	if b, err := linkOf(s, whole); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%d bytes are linked, %v", len(b), err)
	}
}

// TestUnlink: a link can be removed before its object.
func TestUnlink(t *testing.T) {
	s := open(t, Config{})
	write(t, s, whole, block, 0)
	linked(t, s, whole)
	if err := errors.Join(s.Unlink(whole), s.Unlink(whole)); err != nil {
		t.Fatal(err)
	}
	if b, err := linkOf(s, whole); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link that was removed has %d bytes, %v", len(b), err)
	}
	wantSpace(t, s, block, 1)
}

// TestLinkWhileRemoved: a link made while its object is being removed does not remain.
func TestLinkWhileRemoved(t *testing.T) {
	s := open(t, Config{})
	for range 500 {
		write(t, s, whole, 1, 0)
		f, err := s.Open(whole)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var made, removed error
		wg.Go(func() { made = s.LinkWhole(ctx, whole, f) })
		wg.Go(func() { removed = s.Remove(ctx, whole) })
		wg.Wait()
		_ = f.Close() // opened read-only
		if made != nil || removed != nil {
			t.Fatalf("link: %v, remove: %v", made, removed)
		}
		if b, err := linkOf(s, whole); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("the link of a removed object has %d bytes, %v", len(b), err)
		}
	}
}

// TestKeepUnlinks: no link remains for a later job.
func TestKeepUnlinks(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Config{Dirs: []string{dir}})
	write(t, s, whole, block, 0)
	linked(t, s, whole)
	if err := errors.Join(s.Close(), s.Keep(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, WholeDir)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("links are left: %v", err)
	}
}
