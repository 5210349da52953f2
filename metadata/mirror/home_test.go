package mirror

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestGivenUpIsNotSent: a change that is given up is not in the next stream, whenever its owner says that it is done.
func TestGivenUpIsNotSent(t *testing.T) {
	m := cluster.NewMap(1, make([]string, 3))
	for i := range 3 {
		m = m.WithState(metadata.NodeID(i), cluster.Up, "")
	}
	p, _ := m.NextPartner(0)
	h := NewHome(0, p)
	b := h.Add([]byte("unlink"))
	h.Begin(m, 1)
	h.GiveUp()
	if !h.Begin(m, 2) {
		t.Fatal("no second stream begins")
	}
	h.Copied()
	if got, ok := h.Next(1 << 20); !ok || len(got.Batches) > 0 || !got.Complete {
		t.Errorf("Next = %+v, %v, want a complete message without batches", got, ok)
	}
	if h.Done(b); h.May(b) {
		t.Error("what was given up may be applied")
	}
}

// TestRelease: when the job is over, changes wait for no partner.
func TestRelease(t *testing.T) {
	h := NewHome(0, cluster.Partner{Node: 1, Since: 1})
	b := h.Add([]byte("create"))
	if h.May(b) {
		t.Fatal("a bound home does not wait for its partner")
	}
	if h.Release(); !h.May(b) || !h.May(h.Add([]byte("size"))) {
		t.Error("changes wait after Release")
	}
}
