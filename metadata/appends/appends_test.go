package appends

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

const node = metadata.NodeID(1)

// ask sends a request to the home and returns its reply.
func ask(t *testing.T, h *Home, q metadata.Append, size int64) metadata.Place {
	t.Helper()
	off, err := h.Place(node, q, size, time.Time{})
	if err != nil {
		t.Fatalf("Place(%+v) = %v", q, err)
	}
	return metadata.Place{Off: off, Tail: h.Tail(), Attr: metadata.Attr{Size: max(size, h.End())}}
}

// TestLostRequestKeepsTheBytesBefore: a request that the home never received has no effect on the place before it,
// where bytes were written.
func TestLostRequestKeepsTheBytesBefore(t *testing.T) {
	h, c := NewHome(), &Client{}
	c.Placed(ask(t, h, c.Reserve(1000, 1, 10, 0), 0), 0)
	c.Written(10, false, 0)
	c.Reserve(1000, 2, 5, 0) // does not reach the home
	c.Failed()
	q := c.Reserve(1000, 3, 7, 0)
	if p := ask(t, h, q, 0); p.Off != 10 || p.Attr.Size != 10 {
		t.Errorf("the third append is at %d, size %d, want at 10 behind the first, size 10", p.Off, p.Attr.Size)
	}
}

// TestUnusedPlaceIsGivenAgain: after several failed reservations in a row, the home takes back the place it granted.
func TestUnusedPlaceIsGivenAgain(t *testing.T) {
	h, c := NewHome(), &Client{}
	c.Placed(ask(t, h, c.Reserve(1000, 1, 10, 0), 0), 0)
	c.Written(0, true, 0)
	c.Reserve(1000, 2, 5, 0)
	c.Failed()
	if p := ask(t, h, c.Reserve(1000, 3, 7, 0), 0); p.Off != 0 {
		t.Errorf("the place of the first is not given again: %+v", p)
	}
}

// TestNewRunCountsAnew: a restarted client may reuse the sequence numbers of its previous run.
func TestNewRunCountsAnew(t *testing.T) {
	h := NewHome()
	for seq := range uint64(17) {
		ask(t, h, metadata.Append{Ino: 1000, Seq: seq + 1, Len: 1}, 0)
	}
	if _, err := h.Place(node, metadata.Append{Ino: 1000, Seq: 3, Len: 1}, 0, time.Time{}); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("a late copy = %v, want ESTALE", err)
	}
	h.Restarted(node)
	if p := ask(t, h, metadata.Append{Ino: 1000, Seq: 1, Len: 1}, 0); p.Off != 17 {
		t.Errorf("the first append of the new run is at %d, want 17", p.Off)
	}
}

// TestPlaceOfAnEarlierHome: a client does not use a place that it requested before a report.
func TestPlaceOfAnEarlierHome(t *testing.T) {
	c := &Client{}
	c.Reserve(1000, 1, 10, 0)
	asked := c.Reports()
	if fl, _ := c.Report(); fl.Off >= 0 || fl.Len != 10 {
		t.Errorf("Report = %+v, want a reservation without a place", fl)
	}
	if !c.Placed(metadata.Place{Off: 50}, asked) {
		t.Error("a place asked for before the report was taken")
	}
	if c.Placed(metadata.Place{Off: 60}, c.Reports()) {
		t.Error("the place asked for after the report was refused")
	}
}
