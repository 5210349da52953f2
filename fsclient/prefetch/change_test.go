package prefetch

import (
	"bytes"
	"context"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// TestPlansThatDoNotFit: a plan of the wrong length, or of a directory that does not exist, is stale with that reason,
// and no file is fetched. Listed files that the dataset lacks are skipped.
func TestPlansThatDoNotFit(t *testing.T) {
	for name, plan := range map[string]accessplan.Plan{
		"another length": {Dataset: "set", Kind: accessplan.Torch, Files: 99},
		"no such root":   {Dataset: "set", Kind: accessplan.List, Root: "nowhere"},
		"indices beyond": {Dataset: "set", Kind: accessplan.List, Indices: []uint32{0, 7}},
	} {
		s := &shards{sizes: []int64{4 << 20, 4 << 20}}
		e := s.start(t, plan, 64<<20)
		for deadline := time.Now().Add(20 * time.Second); e.State().Phase != accessplan.Stale || e.State().Reason == ""; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", name, e.State())
			}
		}
		for off := int64(0); off < s.sizes[0]; off += pieceBytes {
			if b := e.Read(t.Context(), s, s.ino(0), off, pieceBytes); b != nil {
				t.Errorf("%s: bytes in memory", name)
			}
		}
		if n := s.asked.Load(); n > 0 {
			t.Errorf("%s: %d bytes were fetched", name, n)
		}
	}
	s := &shards{sizes: []int64{4 << 20, 4 << 20}}
	e := s.start(t, accessplan.Plan{Dataset: "set", Kind: accessplan.List, Paths: []string{"00.tar", "gone.tar", "gone.tar:0+9", "00.tar:99999999+5", "01.tar"}}, 64<<20)
	for off := int64(0); off < s.sizes[0]; off += pieceBytes {
		e.Read(t.Context(), s, s.ino(0), off, pieceBytes)
	}
	e.await(t, place{s.ino(1), 0})
}

// losing is a set of shards whose node may be lost.
type losing struct {
	*shards
	lost   atomic.Bool
	failed atomic.Int64
}

func (l *losing) ReadMany(ctx context.Context, id metadata.NodeID, rs []datapath.RangeRead, buf []byte) error {
	if l.lost.Load() {
		l.failed.Add(1)
		return syscall.ECONNRESET
	}
	return l.shards.ReadMany(ctx, id, rs, buf)
}

// TestNodeLostInAShard: while the node of a shard is lost, readers make their own attempts, and few pieces are
// requested; when another node has the shard, its pieces are fetched again.
func TestNodeLostInAShard(t *testing.T) {
	l := &losing{shards: &shards{sizes: []int64{64 << 20}, on: []metadata.NodeID{1}}}
	e := l.startWith(t, l, accessplan.Plan{Dataset: "set", Kind: accessplan.List}, 64<<20)
	ino := l.ino(0)
	e.Read(t.Context(), l, ino, 0, pieceBytes)
	e.await(t, place{ino, pieceBytes})
	l.lost.Store(true)
	const reads = 20
	off := int64(pieceBytes)
	for range reads {
		if b := e.Read(t.Context(), l, ino, off, pieceBytes); b != nil && !bytes.Equal(b, l.content(ino, off, pieceBytes)) {
			t.Fatalf("wrong bytes at %d", off)
		}
		off += pieceBytes
	}
	if n := l.failed.Load(); n > 4*reads {
		t.Errorf("%d attempts for %d reads", n, reads)
	}
	l.lost.Store(false)
	for deadline := time.Now().Add(20 * time.Second); ; off += pieceBytes {
		if b := e.Read(t.Context(), l, ino, off, pieceBytes); b != nil {
			if !bytes.Equal(b, l.content(ino, off, pieceBytes)) {
				t.Fatalf("wrong bytes at %d", off)
			}
			return
		}
		if off+2*pieceBytes >= l.sizes[0] {
			off = 0
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing is fetched from the other node: %+v", e.State())
		}
		time.Sleep(time.Millisecond)
	}
}
