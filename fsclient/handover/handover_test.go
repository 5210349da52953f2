package handover

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// memory returns a file that stands for a memfd.
func memory(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mapped(t *testing.T, f *os.File, earlier bool) *Table {
	t.Helper()
	tab, err := Map(f, earlier)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// TestGenerations: whenever a daemon ends, the next one finds the open files of all its predecessors and uses other
// handles.
func TestGenerations(t *testing.T) {
	f := memory(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	want := make(map[uint64]Open)
	passthrough := 0
	for generation := range 20 {
		tab := mapped(t, f, generation > 0)
		if generation == 0 {
			if err := tab.SetSettings([]byte("settings")); err != nil {
				t.Fatal(err)
			}
		}
		if got := string(tab.Settings()); got != "settings" {
			t.Fatalf("settings %q", got)
		}
		open, registered := tab.Slots()
		got := make(map[uint64]Open)
		for _, s := range open {
			got[s.Open().FH] = s.Open()
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || len(open) != len(want) || len(registered) != passthrough {
			t.Fatalf("generation %d finds %v and %d registered, want %v and %d", generation, got, len(registered), want, passthrough)
		}
		for fh := tab.FirstHandle(); fh < tab.FirstHandle()+30; fh++ {
			if _, had := want[fh]; had {
				t.Fatalf("handle %d is used again", fh)
			}
			o := Open{FH: fh, Ino: metadata.Ino(rnd.Uint64()), Request: rnd.Uint64(), Flags: rnd.Uint32(), Backing: rnd.Int32(), State: Direct}
			s := tab.Add(o)
			switch rnd.IntN(4) {
			case 0:
				s.Free()
				continue
			case 1:
				s.Set(Dirty)
				o.State = Direct | Dirty
			case 2:
				s.Set(Dirty | Locked)
				s.Clear(Dirty)
				o.State = Direct | Locked
			}
			want[fh] = o
		}
		for _, s := range open {
			if rnd.IntN(3) == 0 {
				delete(want, s.Open().FH)
				s.Free()
			}
		}
		for _, s := range registered {
			if rnd.IntN(2) == 0 {
				s.Free()
				passthrough--
			}
		}
		tab.Register(1, 2)
		passthrough++
	}
}

// TestFull: a file for which there is no room is not recorded, and freed room is reused.
func TestFull(t *testing.T) {
	tab := mapped(t, memory(t), false)
	var all []*Slot
	for fh := range uint64(records) {
		all = append(all, tab.Add(Open{FH: fh + 1}))
	}
	none := tab.Add(Open{FH: records + 1})
	if slices.Contains(all, nil) || none != nil {
		t.Fatalf("Add to a full table = %v", none)
	}
	none.Set(Dirty)
	none.Free()
	all[7].Free()
	if s := tab.Add(Open{FH: records + 1}); s == nil || s.Open().FH != records+1 {
		t.Errorf("Add after a Free = %v", s)
	}
	var nothing *Table
	if s := nothing.Add(Open{FH: 1}); s != nil || nothing.FirstHandle() == 0 {
		t.Errorf("Add to no table = %v", s)
	}
}

// TestNotInitialised: the memory of a daemon that ended before it stored its settings is refused.
func TestNotInitialised(t *testing.T) {
	f := memory(t)
	if _, err := Map(f, true); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Map of an empty file = %v, want EINVAL", err)
	}
	mapped(t, f, false)
	if _, err := Map(f, true); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Map without settings = %v, want EINVAL", err)
	}
}
