package cache

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// TestAttrs: inodes of the same slot evict each other, and none is mistaken for another.
func TestAttrs(t *testing.T) {
	var c Attrs
	a, b := &metadata.Attr{Ino: 7, Size: 1}, &metadata.Attr{Ino: metadata.Ino(7 + len(c)), Size: 2}
	if c.Get(a.Ino) != nil {
		t.Error("an empty cache has an inode")
	}
	c.Put(a)
	if c.Get(a.Ino) != a || c.Get(b.Ino) != nil {
		t.Error("the cache has another inode than the one that was put")
	}
	c.Put(b)
	if c.Get(a.Ino) != nil || c.Get(b.Ino) != b {
		t.Error("the last inode of a slot is not the one that is cached")
	}
}

func TestStubs(t *testing.T) {
	dialed := 0
	c := NewStubs(func(id metadata.NodeID) string { dialed++; return "dialed" })
	c.Put(1, "own")
	if got := c.Get(1); got != "own" || dialed != 0 {
		t.Errorf("Get(1) = %q after %d dials, want the stub that was put", got, dialed)
	}
	for range 2 {
		if got := c.Get(2); got != "dialed" || dialed != 1 {
			t.Errorf("Get(2) = %q after %d dials, want one dial", got, dialed)
		}
	}
}

type fakeNodes struct {
	mu    sync.Mutex
	asked int
	down  bool // node 1 does not answer
}

func (f *fakeNodes) Up() []metadata.NodeID { return []metadata.NodeID{0, 1} }

func (f *fakeNodes) Space(_ context.Context, id metadata.NodeID) (datapath.Space, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if id == 1 && f.down {
		return datapath.Space{}, syscall.EHOSTUNREACH
	}
	return datapath.Space{Capacity: 100, Used: 40, Free: 60, Objects: 4}, nil
}

// TestSpace: the sum is cached for a while, and a node that does not answer counts with its last answer, as full.
func TestSpace(t *testing.T) {
	nodes, now := &fakeNodes{}, time.Unix(1e9, 0)
	s := NewSpace(nodes, func() time.Time { return now })
	total := func(want datapath.Space, asked int) {
		t.Helper()
		got, err := s.Total(context.Background())
		if err != nil || got != want || nodes.asked != asked {
			t.Errorf("Total = %+v, %v after %d calls, want %+v after %d", got, err, nodes.asked, want, asked)
		}
	}
	both := datapath.Space{Capacity: 200, Used: 80, Free: 120, Objects: 8}
	total(both, 2)
	nodes.down = true
	now = now.Add(spaceFresh - 1)
	total(both, 2)
	now = now.Add(1)
	both.Free = 60
	total(both, 4)
}
