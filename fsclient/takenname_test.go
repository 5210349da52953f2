package fsclient_test

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
)

// takenHome creates a name just before it is asked to, like another node whose lease recall has not arrived. It leases
// everything.
type takenHome struct{ *clienttest.Home }

var forAMinute = metadata.Lease{Entry: time.Minute, Attr: time.Minute, Session: metadata.LeaseSession{ID: 1}, Term: time.Minute}

func (h takenHome) Create(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if _, err := h.Home.Create(ctx, dir, name, n); err != nil {
		return metadata.Attr{}, err
	}
	return h.Home.Create(ctx, dir, name, n)
}

func (h takenHome) LookupLease(ctx context.Context, dir metadata.Ino, name string, _ metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	e, err := h.Lookup(ctx, dir, name)
	return e, forAMinute, err
}

func (h takenHome) GetattrLease(ctx context.Context, ino metadata.Ino, _ metadata.NodeID) (metadata.Attr, metadata.Lease, error) {
	a, err := h.Getattr(ctx, ino)
	return a, forAMinute, err
}

func (h takenHome) ReadDirLease(ctx context.Context, dir metadata.Ino, after string, limit int, _ metadata.NodeID) (metadata.LeasedListing, error) {
	a, err := h.Getattr(ctx, dir)
	if err != nil {
		return metadata.LeasedListing{}, err
	}
	l := metadata.LeasedListing{Dir: a, Lease: forAMinute}
	es, err := h.ReadDir(ctx, dir, after, limit)
	for _, e := range es {
		l.Entries = append(l.Entries, metadata.LeasedEntry{Entry: e, EntryTerm: time.Minute, AttrTerm: time.Minute})
	}
	return l, err
}

func (h takenHome) RenewLease(context.Context, uint64, metadata.NodeID) (time.Duration, error) {
	return time.Minute, nil
}

// TestTakenName: a create that fails with EEXIST drops the cached negative entry, so the name is found afterwards.
func TestTakenName(t *testing.T) {
	j := newJob(t, 2)
	c := j.client(t, 1, nil)
	dir := dirOn(t, c, 0)
	j.meta[0] = takenHome{j.homes[0]}
	c = j.client(t, 1, nil)
	lookup := func(name string) error {
		_, _, err := c.LookupLeased(ctx, dir, name)
		return err
	}
	if _, _, err := c.GetattrLeased(ctx, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c", "x"} { // the directory is listed in between
		if err := lookup(name); !errors.Is(err, syscall.ENOENT) {
			t.Fatalf("lookup of %q = %v", name, err)
		}
	}
	if _, err := j.homes[0].Create(ctx, dir, "y", metadata.New{Mode: syscall.S_IFREG | 0o644}); err != nil || !errors.Is(lookup("y"), syscall.ENOENT) {
		t.Fatalf("absent names are not leased: %v", err)
	}
	if _, err := c.Create(ctx, dir, "x", metadata.New{Mode: syscall.S_IFREG | 0o644}); !errors.Is(err, syscall.EEXIST) {
		t.Fatalf("Create = %v", err)
	}
	if err := lookup("x"); err != nil {
		t.Errorf("lookup of the existing name = %v", err)
	}
}
