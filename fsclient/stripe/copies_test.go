package stripe

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func copiedAttr(ino metadata.Ino, size int) *metadata.Attr {
	a := attr(ino, size)
	a.Layout.Copies = 2
	return a
}

func (s *memStore) setFail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
}

func (s *memStore) Data(_ context.Context, ino metadata.Ino, off int64) (datapath.Extent, error) {
	return datapath.Extent{From: off, To: int64(len(s.objects[ino]))}, nil
}

// TestCopies: all changes reach both copies, and each copy alone provides the bytes.
func TestCopies(t *testing.T) {
	d, n, _ := newData(t)
	want := pattern(chunk + 100)
	a, pair := copiedAttr(5000, len(want)), []metadata.NodeID{2, 0}
	if m, nodes, err := d.Write(ctx, a, pair, want, 0); m != len(want) || !slices.Equal(nodes, pair) || err != nil {
		t.Fatalf("Write = %d, %v, %v", m, nodes, err)
	}
	if err := d.Sync(ctx, a, pair, pair); err != nil || n.stores[0].synced != 1 || n.stores[2].synced != 1 {
		t.Errorf("Sync = %v", err)
	}
	if err := d.Cut(ctx, a, pair, chunk); err != nil {
		t.Fatal(err)
	}
	a.Size = chunk
	for _, lost := range []metadata.NodeID{0, 1, 2} {
		n.excluded = func(id metadata.NodeID) bool { return id == lost }
		got := make([]byte, len(want))
		if m, err := d.Read(ctx, a, pair, got, 0, ReadOpts{}); m != chunk || err != nil || !bytes.Equal(got[:m], want[:m]) {
			t.Errorf("without node %d: Read = %d, %v, or other bytes", lost, m, err)
		}
		if at, err := d.NextHole(ctx, a, pair, 0); at != chunk || err != nil {
			t.Errorf("without node %d: NextHole = %d, %v", lost, at, err)
		}
	}
	n.excluded = nil
	if at := d.Spans(a, pair, 0, 10); len(at) != 2 || at[0].Node != 2 || at[1].Node != 0 {
		t.Errorf("Spans = %v", at)
	}
	has := func(size int) {
		t.Helper()
		for i, s := range n.stores {
			if objects := len(s.objects); objects != 1-i%2 || i != 1 && len(s.objects[a.Object()]) != size {
				t.Errorf("node %d has %d objects, of %d bytes", i, objects, len(s.objects[a.Object()]))
			}
		}
	}
	has(chunk)
	if err := d.Cut(ctx, a, pair, 0); err != nil {
		t.Fatal(err)
	}
	has(0)
}

// TestWriteWithoutOneCopy: a write waits for a copy that does not answer until the map excludes it, but not for a copy
// whose disk refused the write.
func TestWriteWithoutOneCopy(t *testing.T) {
	d, n, _ := newData(t)
	a, pair := copiedAttr(5000, 10), []metadata.NodeID{0, 1}
	var asked atomic.Int32
	n.stores[1].setFail(syscall.ECONNRESET)
	n.excluded = func(id metadata.NodeID) bool { return id == 1 && asked.Add(1) > 5 }
	if m, _, err := d.Write(ctx, a, pair, pattern(10), 0); m != 10 || err != nil {
		t.Errorf("Write = %d, %v", m, err)
	}
	if asked.Load() <= 5 {
		t.Error("the write was acknowledged while both copies counted")
	}
	n.excluded = nil
	n.stores[1].setFail(syscall.ENOSPC)
	if m, _, err := d.Write(ctx, a, pair, pattern(10), 0); m != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Write = %d, %v, want ENOSPC", m, err)
	}
	n.excluded = func(metadata.NodeID) bool { return true }
	if _, _, err := d.Write(ctx, a, pair, pattern(10), 0); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("Write without a copy = %v", err)
	}
	if _, err := d.Read(ctx, a, pair, make([]byte, 10), 0, ReadOpts{}); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("Read without a copy = %v", err)
	}
}

// TestReadOfOtherCopy: a copy that fails, or that the map excludes during the read, is replaced by the other one.
func TestReadOfOtherCopy(t *testing.T) {
	d, n, _ := newData(t)
	a, pair, want := copiedAttr(5000, 10), []metadata.NodeID{0, 1}, pattern(10)
	n.stores[0].objects[a.Object()], n.stores[1].objects[a.Object()] = make([]byte, 10), want
	looks := 0
	n.excluded = func(id metadata.NodeID) bool { looks++; return id == 0 && looks > 2 }
	read := func(what string) {
		t.Helper()
		got := make([]byte, 10)
		if m, err := d.Read(ctx, a, pair, got, 0, ReadOpts{}); m != 10 || err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: Read = %d, %v, %v", what, m, err, got)
		}
	}
	read("excluded meanwhile")
	n.excluded = nil
	for _, err := range []error{syscall.EIO, syscall.EHOSTDOWN, syscall.ECONNRESET} {
		n.stores[0].errs = []error{err}
		read(err.Error())
	}
	n.stores[0].errs, n.stores[1].errs = []error{syscall.EIO}, []error{syscall.EIO}
	if _, err := d.Read(ctx, a, pair, make([]byte, 10), 0, ReadOpts{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("Read of two bad disks = %v", err)
	}
}

// TestCopyThatIsMade: a change reaches a copy under construction, in its own object, after the complete copy.
func TestCopyThatIsMade(t *testing.T) {
	d, n, _ := newData(t)
	want := pattern(2 * chunk)
	a, order := copiedAttr(5000, len(want)), []metadata.NodeID{0, 1}
	n.excluded = func(id metadata.NodeID) bool { return id == 1 }
	n.filling = []cluster.Copy{{Node: 2, From: 7}}
	if at := d.Spans(a, order, 0, 10); len(at) != 2 || at[0].Node != 0 || at[1].Node != 2 {
		t.Errorf("Spans = %v", at)
	}
	var early bool
	n.stores[2].onWrite = func() { early = early || len(n.stores[0].objects[a.Object()]) < len(want) }
	if m, _, err := d.Write(ctx, a, order, want, 0); m != len(want) || err != nil {
		t.Fatalf("Write = %d, %v", m, err)
	}
	if err := d.Cut(ctx, a, order, chunk); err != nil {
		t.Fatal(err)
	}
	if got := n.stores[2].objects[a.Object().Moved(0)]; early || !bytes.Equal(got, want[:chunk]) || len(n.stores[1].objects) > 0 {
		t.Errorf("the copy that is made has %d bytes, written first: %v", len(got), early)
	}
	n.excluded = func(metadata.NodeID) bool { return true }
	if _, err := d.Read(ctx, a, order, make([]byte, 10), 0, ReadOpts{}); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("Read of a copy that is not whole = %v", err)
	}
}
