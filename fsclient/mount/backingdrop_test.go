package mount

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient/handover"
	"github.com/bivouacfs/bivouac/metadata"
)

// recordedAt records the contents of the table when an id is unregistered: the next daemon would take over that state
// if this one were killed at that moment.
type recordedAt struct {
	table   *handover.Table
	dropped map[int32]int // the number of records left for each id
}

func (r *recordedAt) Back(*os.File) (int32, error) { return 0, nil }

func (r *recordedAt) Drop(id int32) error {
	_, registered := r.table.Slots()
	r.dropped[id] = len(registered)
	return nil
}

// TestDropForgetsFirst: whenever an id is unregistered, its record has been removed before.
func TestDropForgetsFirst(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := handover.Map(f, false)
	if err != nil {
		t.Fatal(err)
	}
	r := &recordedAt{table: table, dropped: make(map[int32]int)}
	s := &backings{}
	s.init(r, 1)
	s.table = table
	for id := int32(1); id <= 2; id++ {
		b := &backing{ino: metadata.Ino(id), slot: table.Register(metadata.Ino(id), id)}
		b.id.Store(id)
		s.byIno[b.ino] = b
		s.idle.Add(b.ino, b)
	}
	s.forget([]metadata.Ino{1}) // its object was removed
	two := s.reopen(2)
	s.forget([]metadata.Ino{2}) // while it is open
	if len(r.dropped) != 1 {
		t.Fatalf("dropped are %v, want the idle one", r.dropped)
	}
	s.close(two)
	for id, left := range map[int32]int{1: 1, 2: 0} {
		if got, ok := r.dropped[id]; !ok || got != left {
			t.Errorf("when id %d was unregistered (%t), %d were recorded, want %d", id, ok, got, left)
		}
	}
}
