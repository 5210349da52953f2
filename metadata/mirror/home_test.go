package mirror

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestGivenUpIsNotSent: a change that was given up is not in the next stream, whenever its owner reports it as done.
func TestGivenUpIsNotSent(t *testing.T) {
	m := cluster.NewMap(1, make([]string, 3))
	for i := range 3 {
		m = m.WithState(metadata.NodeID(i), cluster.Up, "")
	}
	p, _ := m.NextPartner(0)
	h := NewHome(0, 0, p)
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

// TestRelease: after the end of the job, changes do not wait for a partner.
func TestRelease(t *testing.T) {
	h := NewHome(0, 0, cluster.Partner{Node: 1, Since: 1})
	b := h.Add([]byte("create"))
	if h.May(b) {
		t.Fatal("a bound home does not wait for its partner")
	}
	if h.Release(); !h.May(b) || !h.May(h.Add([]byte("size"))) {
		t.Error("changes wait after Release")
	}
}

// TestChangesWhileCopied: while the records of a home without a partner are copied, changes continue as far as memory
// allows; they are sent to the partner before the copy is complete, and later changes wait.
func TestChangesWhileCopied(t *testing.T) {
	m := cluster.NewMap(1, make([]string, 2)).WithState(0, cluster.Up, "").WithState(1, cluster.Up, "")
	h := NewHome(0, 0, cluster.Partner{})
	h.Begin(m, 1)
	h.Record()
	during := h.Add([]byte("create"))
	if !h.May(during) {
		t.Fatal("a change waits for all records")
	}
	h.Done(during)
	large := h.Add(make([]byte, maxBehind))
	if h.Done(large); h.May(h.Add([]byte("x"))) {
		t.Error("changes without end are kept in memory")
	}
	h.Copied()
	after := h.Add([]byte("unlink"))
	if h.May(after) {
		t.Error("a change does not wait although all records are sent")
	}
	for k, want := range []bool{false, true} {
		got, ok := h.Next(1)
		if !ok || got.Complete != want || k == 0 && got.Batches[0] != during {
			t.Fatalf("message %d = %+v, %v, want complete %v", k, got, ok, want)
		}
		if h.Acked(got); h.May(after) {
			t.Error("a change may be made that the partner does not have")
		}
	}
	for !h.May(after) {
		got, ok := h.Next(1 << 20)
		if !ok {
			t.Fatal("the last change is not sent")
		}
		h.Acked(got)
	}
}

// TestInStep: a home bound since an earlier run is in step once its partner has all records again, or is lost.
func TestInStep(t *testing.T) {
	m := cluster.NewMap(7, []string{"a", "b", "c"})
	for i := range m.Nodes {
		m = m.WithState(metadata.NodeID(i), cluster.Up, "addr")
	}
	if !NewHome(0, 0, cluster.Partner{}).InStep() {
		t.Error("a home without a partner is not in step")
	}
	bound := cluster.Partner{Node: 1, Since: m.Epoch}
	h := NewHome(0, 0, bound)
	for i, step := range []func(){
		func() {},
		func() { h.Begin(m, 1) },
		func() { h.Record(); h.Copied() },
		func() { h.Abandon(); h.Begin(m, 2); h.Record(); h.Copied() },
	} {
		if step(); h.InStep() {
			t.Errorf("step %d: in step with a partner that has not been sent all", i)
		}
	}
	msg, _ := h.Next(1 << 20)
	if h.Acked(msg); !h.InStep() {
		t.Error("not in step with a partner that has all")
	}
	if h.Abandon(); !h.InStep() {
		t.Error("not in step after the stream was interrupted")
	}
	lost := NewHome(0, 0, bound)
	if lost.See(m.WithState(1, cluster.Down, "")); !lost.InStep() {
		t.Error("not in step after the partner was lost")
	}
}
