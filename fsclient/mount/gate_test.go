package mount

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestGate: only the helper finds a hidden dataset; after that lookup, other lookups wait until it is shown.
func TestGate(t *testing.T) {
	const helper = 7
	var shown atomic.Bool
	ds, other := cluster.Dataset{ID: 1, Name: "a"}, cluster.Dataset{ID: 2, Name: "b"}
	var g gate
	g.init(&Config{HelperGID: helper, Hidden: func(d cluster.Dataset) bool { return d.ID == ds.ID && !shown.Load() }})
	program, root := &fuse.InHeader{}, &fuse.InHeader{}
	root.Gid = helper
	pass := func(h *fuse.InHeader, d cluster.Dataset) error {
		_, err := g.pass(t.Context(), h, d)
		return err
	}
	if seen := g.visible([]cluster.Dataset{ds, other}); len(seen) != 1 || seen[0].ID != other.ID {
		t.Errorf("listed: %v", seen)
	}
	if err := pass(program, ds); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("before the helper: %v, want ENOENT", err)
	}
	if fresh, err := g.pass(t.Context(), program, other); err != nil || fresh != datasetFresh {
		t.Errorf("another dataset: %v, %v", fresh, err)
	}
	if fresh, err := g.pass(t.Context(), root, ds); err != nil || fresh != 0 {
		t.Errorf("the helper: %v, %v; want that the kernel asks again", fresh, err)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.pass(interrupted, program, ds); !errors.Is(err, syscall.EINTR) {
		t.Errorf("a lookup that is interrupted: %v, want EINTR", err)
	}
	waits := make(chan error, 10) // one for each lookup
	for range cap(waits) {
		go func() {
			err := pass(program, ds)
			if !shown.Load() {
				err = errors.New("answered before the dataset is shown")
			}
			waits <- err
		}()
	}
	g.reveal() // for another dataset
	shown.Store(true)
	g.reveal()
	for range cap(waits) {
		if err := <-waits; err != nil {
			t.Errorf("a lookup that waited: %v", err)
		}
	}
	if fresh, err := g.pass(t.Context(), root, ds); err != nil || fresh != datasetFresh {
		t.Errorf("the helper later: %v, %v", fresh, err)
	}
}

// TestUnsettled: while the datasets of the job are unknown, looking up an unknown name returns EIO.
func TestUnsettled(t *testing.T) {
	ds, m := cluster.Dataset{ID: 1, Name: "a"}, &Mount{fs: new(fsys)}
	g := &m.fs.gate
	g.init(&Config{HelperGID: 7, Hidden: func(cluster.Dataset) bool { return true }, Unsettled: true})
	want := func(e syscall.Errno) {
		t.Helper()
		if _, err := g.pass(t.Context(), &fuse.InHeader{}, ds); !errors.Is(err, e) {
			t.Errorf("a hidden dataset: %v, want %v", err, e)
		}
		if err := g.missing(); !errors.Is(err, e) {
			t.Errorf("an unknown dataset: %v, want %v", err, e)
		}
	}
	want(syscall.EIO)
	m.Settle()
	want(syscall.ENOENT)
}
