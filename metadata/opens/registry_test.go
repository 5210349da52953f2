package opens

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

func on(node metadata.NodeID) metadata.Holder { return metadata.Holder{Node: node, Run: 1} }

func mustOpen(t *testing.T, r *Registry, by metadata.Holder, ino metadata.Ino, tick metadata.Ticket) {
	t.Helper()
	if err := r.Open(by, ino, tick); err != nil {
		t.Fatal(err)
	}
}

func wantRemovable(t *testing.T, r *Registry, what string, inos ...metadata.Ino) []Removable {
	t.Helper()
	files := r.Take(100)
	var got []metadata.Ino
	for _, l := range files {
		got = append(got, l.Ino)
	}
	if !slices.Equal(got, inos) {
		t.Errorf("%s: Take = %v, want %v", what, got, inos)
	}
	return files
}

func TestLastClose(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	mustOpen(t, r, on(1), 100, 5)
	mustOpen(t, r, on(2), 100, 9)
	r.Orphaned(100, false)
	wantRemovable(t, r, "open on two nodes")
	r.Close(on(1), metadata.Opened{Ino: 100, Ticket: 5})
	wantRemovable(t, r, "open on one node")
	mustOpen(t, r, on(3), 100, 1) // by a name looked up earlier
	r.Close(on(2), metadata.Opened{Ino: 100, Ticket: 9})
	r.Close(on(3), metadata.Opened{Ino: 100, Ticket: 1})
	if l := wantRemovable(t, r, "closed by all", 100); l[0].Unsure {
		t.Error("a file that was closed is unsure")
	}
	if err := r.Open(on(1), 100, 6); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("Open of a file that is being removed = %v, want ESTALE", err)
	}
	r.NotRemoved(100)
	if err := r.Open(on(1), 100, 7); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("Open of a half removed file = %v, want ESTALE", err)
	}
	wantRemovable(t, r, "removal failed", 100)
	r.Removed(100)
	if s := r.Stats(); s != (Stats{}) || len(r.files) != 0 {
		t.Errorf("at the end: %+v", s)
	}
}

func TestLateClose(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	mustOpen(t, r, on(1), 100, 5)
	mustOpen(t, r, on(1), 100, 6)
	r.Close(on(1), metadata.Opened{Ino: 100, Ticket: 5})
	r.Orphaned(100, false)
	wantRemovable(t, r, "the close of an earlier open")
	r.Close(on(1), metadata.Opened{Ino: 100, Ticket: 6})
	wantRemovable(t, r, "the close of the last open", 100)
}

func TestRuns(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	mustOpen(t, r, on(1), 100, 5)
	r.Orphaned(100, false)
	r.NoteRun(metadata.Holder{Node: 1, Run: 2})
	if l := wantRemovable(t, r, "its node has started again", 100); !l[0].Unsure {
		t.Error("the writer died, and the file is not unsure")
	}
	if err := r.Open(on(1), 101, 6); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("Open by an earlier run = %v, want ESTALE", err)
	}
	mustOpen(t, r, metadata.Holder{Node: 1, Run: 2}, 102, 1)
	r.Close(on(1), metadata.Opened{Ino: 102, Ticket: 9})
	r.Orphaned(102, false)
	wantRemovable(t, r, "a close by an earlier run")
}

// TestDeadWriter: a file whose writer died stays unsure until its removal.
func TestDeadWriter(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	mustOpen(t, r, on(1), 100, 5)
	r.Lost(1)
	mustOpen(t, r, on(2), 100, 1)
	r.Close(on(2), metadata.Opened{Ino: 100, Ticket: 1})
	r.Orphaned(100, false)
	if l := wantRemovable(t, r, "unlinked", 100); !l[0].Unsure {
		t.Error("not unsure")
	}
	mustOpen(t, r, on(1), 200, 5)
	r.Close(on(1), metadata.Opened{Ino: 200, Ticket: 5, Unsure: true})
	r.Orphaned(200, false)
	if l := wantRemovable(t, r, "closed with an error", 200); !l[0].Unsure {
		t.Error("not unsure")
	}
	for ino, copied := range map[metadata.Ino]bool{300: true, 400: false} {
		if err := r.BeginTruncate(ino, 0, time.Time{}); err != nil {
			t.Fatal(err)
		}
		r.EndTruncate(ino, 0, copied)
		r.Orphaned(ino, false)
		if l := wantRemovable(t, r, "truncated", ino); l[0].Unsure != copied {
			t.Errorf("inode %v, truncated: unsure is %v", ino, l[0].Unsure)
		}
		r.Removed(ino)
	}
	r.Removed(100)
	r.Removed(200)
	if len(r.unsure) > 0 {
		t.Errorf("%d removed files are remembered", len(r.unsure))
	}
}

// TestUnsureFilesAreForgotten: of a file that was closed unsure, only the unsure mark is remembered.
func TestUnsureFilesAreForgotten(t *testing.T) {
	f := New(Config{Store: newWorld()})
	mustOpen(t, f.Registry, on(1), 100, 1)
	f.Close(on(1), metadata.Opened{Ino: 100, Ticket: 1, Unsure: true})
	f.publishOutdated(t.Context())
	if len(f.files) > 0 || len(f.unsure) != 1 {
		t.Errorf("%d files in memory, %d unsure", len(f.files), len(f.unsure))
	}
	f.Orphaned(100, false)
	if l := wantRemovable(t, f.Registry, "unlinked", 100); !l[0].Unsure {
		t.Error("not unsure")
	}
}

func TestAwait(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	r.Await(1)
	r.Await(2)
	r.Orphaned(100, true)
	r.Orphaned(101, true)
	wantRemovable(t, r, "two nodes have not answered")
	r.Add(on(1), []metadata.Opened{{Ino: 100, Ticket: 3}})
	r.Answered(1)
	wantRemovable(t, r, "one node has not answered")
	r.Lost(2)
	wantRemovable(t, r, "one has answered, one is lost", 101)
	r.Lost(1)
	wantRemovable(t, r, "both are lost", 100)
}

// TestCreateAndUnlink: a file that is unlinked before its create is answered stays until its creator has closed it.
func TestCreateAndUnlink(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	m := r.BeginCreate()
	r.Orphaned(100, false)
	wantRemovable(t, r, "its create is under way")
	later := r.BeginCreate()
	mustOpen(t, r, on(1), 100, 1)
	r.EndCreate(m)
	wantRemovable(t, r, "it is open")
	r.Close(on(1), metadata.Opened{Ino: 100, Ticket: 1})
	wantRemovable(t, r, "another create is under way")
	r.EndCreate(later)
	wantRemovable(t, r, "no create is under way", 100)
}

func TestConfirm(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	for ino := metadata.Ino(100); ino < 104; ino++ {
		mustOpen(t, r, on(1), ino, metadata.Ticket(ino))
		r.Orphaned(ino, false)
	}
	asked := r.OrphanHolders()[1]
	slices.Sort(asked)
	if !slices.Equal(asked, []metadata.Ino{100, 101, 102, 103}) {
		t.Errorf("OrphanHolders = %v", asked)
	}
	// The node has 101 open; 103 may be a create whose reply is in flight.
	r.Confirm(on(1), 103, asked, []metadata.Opened{{Ino: 101, Ticket: 101}})
	wantRemovable(t, r, "it has closed two", 100, 102)
}

// registryModel is the simplest registry: a file is removable when it has no name and no node has it open.
type registryModel struct {
	open   map[metadata.Ino]map[metadata.NodeID]metadata.Ticket
	orphan map[metadata.Ino]bool
}

func (w *registryModel) removable() []metadata.Ino {
	var l []metadata.Ino
	for ino := range w.orphan {
		if len(w.open[ino]) == 0 {
			l = append(l, ino)
		}
	}
	slices.Sort(l)
	return l
}

func TestRegistryAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	r := NewRegistry(func() {}, nil)
	w := &registryModel{open: map[metadata.Ino]map[metadata.NodeID]metadata.Ticket{}, orphan: map[metadata.Ino]bool{}}
	runs := map[metadata.NodeID]metadata.Run{0: 1, 1: 1, 2: 1}
	for tick := metadata.Ticket(1); tick < 20_000; tick++ {
		ino, id := metadata.Ino(rng.IntN(12)), metadata.NodeID(rng.IntN(3))
		by := metadata.Holder{Node: id, Run: runs[id]}
		switch rng.IntN(10) {
		case 0, 1, 2, 3:
			mustOpen(t, r, by, ino, tick)
			if w.open[ino] == nil {
				w.open[ino] = map[metadata.NodeID]metadata.Ticket{}
			}
			w.open[ino][id] = tick
		case 4, 5, 6, 7:
			c := w.open[ino][id]
			if c > 0 && rng.IntN(4) == 0 {
				c-- // a delayed close
			}
			r.Close(by, metadata.Opened{Ino: ino, Ticket: c})
			if w.open[ino][id] <= c {
				delete(w.open[ino], id)
			}
		case 8:
			r.Orphaned(ino, false)
			w.orphan[ino] = true
		case 9:
			if rng.IntN(3) == 0 {
				runs[id]++
				r.NoteRun(metadata.Holder{Node: id, Run: runs[id]})
			} else {
				r.Lost(id)
			}
			for _, m := range w.open {
				delete(m, id)
			}
		}
		var got []metadata.Ino
		for _, l := range r.Take(100) {
			got = append(got, l.Ino)
			r.Removed(l.Ino)
		}
		slices.Sort(got)
		if want := w.removable(); !slices.Equal(got, want) {
			t.Fatalf("step %d: removed %v, want %v", tick, got, want)
		}
		for _, ino := range got {
			delete(w.orphan, ino)
		}
	}
	maps.DeleteFunc(w.open, func(_ metadata.Ino, m map[metadata.NodeID]metadata.Ticket) bool { return len(m) == 0 })
	if s := r.Stats(); s.Open != len(w.open) || s.Orphans != len(w.orphan) {
		t.Errorf("%+v, want %d open and %d orphans", s, len(w.open), len(w.orphan))
	}
}

// TestNamed: an orphan that gets a name is kept, even if its removal has begun.
func TestNamed(t *testing.T) {
	r := NewRegistry(func() {}, nil)
	r.Orphaned(100, false)
	r.Named(100)
	wantRemovable(t, r, "it has a name")
	mustOpen(t, r, on(1), 100, 1)
	r.Close(on(1), metadata.Opened{Ino: 100, Ticket: 1})
	r.Rest(101)
	r.Named(101)
	r.Rested([]metadata.Ino{101})
	wantRemovable(t, r, "both have names")
	if len(r.files) > 0 {
		t.Errorf("%d files in memory", len(r.files))
	}
	r.Orphaned(102, false)
	wantRemovable(t, r, "unlinked", 102)
	r.Named(102)
	if err := r.Open(on(1), 102, 2); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("Open during its removal: %v, want ESTALE", err)
	}
	r.NotRemoved(102)
	wantRemovable(t, r, "its removal has failed", 102)
	r.NotRemoved(102)
	r.Named(102)
	mustOpen(t, r, on(1), 102, 2)
}

// TestTmpfile: a file created without a name is removed when its client has closed it or has died.
func TestTmpfile(t *testing.T) {
	for _, end := range []func(*Files, metadata.Ino){
		func(f *Files, ino metadata.Ino) { f.Close(on(1), metadata.Opened{Ino: ino, Ticket: 1}) },
		func(f *Files, _ metadata.Ino) { f.Lost(1) },
		func(f *Files, _ metadata.Ino) { f.NoteRun(metadata.Holder{Node: 1, Run: 99}) },
	} {
		w := newWorld()
		f := New(Config{Store: w})
		w.made = func(ino metadata.Ino) { f.Unnamed(ino, 0) }
		h, err := f.CreateOpen(t.Context(), on(1), metadata.Opening{Ticket: 1}, 1, "", metadata.New{Mode: syscall.S_IFREG})
		if err != nil {
			t.Fatal(err)
		}
		wantRemovable(t, f.Registry, "it is open")
		end(f, h.Attr.Ino)
		wantRemovable(t, f.Registry, "it is not", h.Attr.Ino)
	}
}
