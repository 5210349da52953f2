package opens

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// world simulates a home's store and the nodes that store its data.
type world struct {
	mu      sync.Mutex
	attrs   map[metadata.Ino]metadata.Attr
	down    map[metadata.NodeID]bool
	removed map[metadata.NodeID][]metadata.Ino
	next    metadata.Ino
	made    func(metadata.Ino) // called between a create and its reply
}

func newWorld() *world {
	return &world{
		attrs: map[metadata.Ino]metadata.Attr{}, down: map[metadata.NodeID]bool{},
		removed: map[metadata.NodeID][]metadata.Ino{}, next: 1000,
	}
}

func (w *world) Getattr(_ context.Context, ino metadata.Ino) (metadata.Attr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.attrs[ino]
	if !ok {
		return a, syscall.ENOENT
	}
	return a, nil
}

func (w *world) Create(_ context.Context, _ metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	if name == "taken" {
		return metadata.Attr{Ino: 7}, syscall.EEXIST
	}
	w.mu.Lock()
	w.next++
	a := metadata.Attr{Ino: w.next, Mode: n.Mode, Nlink: 1}
	w.attrs[a.Ino] = a
	made := w.made
	w.mu.Unlock()
	if made != nil {
		made(a.Ino)
	}
	return a, nil
}

func (w *world) CreateUnnamed(ctx context.Context, dir metadata.Ino, n metadata.New) (metadata.Attr, error) {
	return w.Create(ctx, dir, "", n)
}

func (w *world) Doom(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	return w.Getattr(ctx, ino)
}

func (w *world) Reap(_ context.Context, ino metadata.Ino) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.attrs, ino)
	return nil
}

func (w *world) Setattr(_ context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.attrs[ino]
	if !ok {
		return a, syscall.ENOENT
	}
	if c.Set&metadata.GrowSize != 0 {
		a.Size = max(a.Size, c.Size)
	} else {
		a.Size = c.Size
	}
	if c.Set&metadata.MtimeNow != 0 {
		a.Mtime++
	}
	a.Ctime++
	w.attrs[ino] = a
	return a, nil
}

func (w *world) unlink(f *Files, ino metadata.Ino) {
	w.mu.Lock()
	a := w.attrs[ino]
	a.Nlink = 0
	w.attrs[ino] = a
	w.mu.Unlock()
	f.Unnamed(ino, 0)
}

func (w *world) places(_ context.Context, a metadata.Attr, all bool) ([]Place, error) {
	if all {
		return []Place{{0, a.Ino}, {1, a.Ino}, {2, a.Ino}}, nil
	}
	if a.Size == 0 {
		return nil, nil
	}
	return []Place{{1, a.Ino}}, nil
}

func (w *world) remove(_ context.Context, id metadata.NodeID, inos []metadata.Ino) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down[id] {
		return fmt.Errorf("node %d: %w", id, syscall.EHOSTDOWN)
	}
	w.removed[id] = append(w.removed[id], inos...)
	return nil
}

func (w *world) has(ino metadata.Ino) bool {
	_, err := w.Getattr(context.Background(), ino)
	return err == nil
}

func (w *world) setDown(id metadata.NodeID, down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down[id] = down
}

// serve starts a Files on w.
func serve(t *testing.T, w *world) *Files {
	t.Helper()
	return serveWith(t, Config{Store: w, Places: w.places, Remove: w.remove})
}

func serveWith(t *testing.T, cfg Config) *Files {
	t.Helper()
	f := New(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { f.Serve(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	return f
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("timed out waiting for: %s", what)
		}
	}
}

func create(t *testing.T, f *Files, by metadata.Holder, tick metadata.Ticket) metadata.Ino {
	t.Helper()
	h, err := f.CreateOpen(context.Background(), by, metadata.Opening{Ticket: tick}, 16, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	return h.Attr.Ino
}

func TestFilesRemove(t *testing.T) {
	ctx := context.Background()
	w := newWorld()
	f := serve(t, w)
	ino := create(t, f, on(1), 1)
	if h, err := f.Open(ctx, on(2), ino, metadata.Opening{Ticket: 4}); err != nil || h.Attr.Ino != ino {
		t.Fatalf("Open = %+v, %v", h, err)
	}
	w.unlink(f, ino)
	for _, by := range []metadata.Holder{on(1), on(2)} {
		if !w.has(ino) {
			t.Fatal("a file that is open was removed")
		}
		if err := f.Closed(ctx, by, []metadata.Opened{{Ino: ino, Ticket: 4}}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the file is gone", func() bool { return !w.has(ino) && f.Stats() == Stats{} })
	if len(w.removed) != 0 {
		t.Errorf("objects of an empty file were removed: %v", w.removed)
	}
	if _, err := f.Open(ctx, on(1), ino, metadata.Opening{Ticket: 5}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("Open of a removed file = %v, want ENOENT", err)
	}
	if h, err := f.CreateOpen(ctx, on(1), metadata.Opening{Ticket: 6}, 16, "taken", metadata.New{Mode: syscall.S_IFREG}); !errors.Is(err, syscall.EEXIST) || h.Attr.Ino != 7 {
		t.Errorf("CreateOpen of a name that is taken = %+v, %v", h, err)
	}
	if _, err := f.CreateOpen(ctx, on(1), metadata.Opening{Ticket: 7}, 16, "d", metadata.New{Mode: syscall.S_IFDIR}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("CreateOpen of a directory = %v, want EINVAL", err)
	}
	if s := f.Stats(); s != (Stats{}) {
		t.Errorf("after errors: %+v", s)
	}
}

// TestFilesNodeAway: a file whose objects an unreachable node cannot remove stays until that node can.
func TestFilesNodeAway(t *testing.T) {
	w := newWorld()
	f := serve(t, w)
	w.setDown(2, true)
	ino := create(t, f, on(1), 1)
	f.Lost(1) // so that all nodes must be asked
	w.unlink(f, ino)
	failed := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.failed) == 1
	}
	eventually(t, "the removal has failed", failed)
	if n := f.Retry(); n != 1 {
		t.Errorf("Retry() = %d, want 1", n)
	}
	eventually(t, "the removal has failed again", failed)
	if !w.has(ino) {
		t.Error("an inode was reaped whose data is there")
	}
	w.setDown(2, false)
	f.Retry()
	eventually(t, "the file is gone", func() bool { return !w.has(ino) })
	if !slices.Contains(w.removed[2], ino) {
		t.Errorf("removed %v", w.removed)
	}
	if n := f.Retry(); n != 0 {
		t.Errorf("Retry() = %d with nothing left, want 0", n)
	}
}

// TestFilesUnlinkInCreate: the file is unlinked before the create returns.
func TestFilesUnlinkInCreate(t *testing.T) {
	w := newWorld()
	f := serve(t, w)
	w.made = func(ino metadata.Ino) { w.unlink(f, ino) }
	ino := create(t, f, on(1), 1)
	if h, err := f.Open(context.Background(), on(1), ino, metadata.Opening{Ticket: 1}); err != nil || h.Attr.Nlink != 0 {
		t.Errorf("Open = %+v, %v", h, err)
	}
	if err := f.Closed(context.Background(), on(1), []metadata.Opened{{Ino: ino, Ticket: 1}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is gone", func() bool { return !w.has(ino) })
}

// TestReplacedRests: a small file that lost its name can still be opened for a moment, and is removed after that once
// no node has it open. A large one is removed immediately.
func TestReplacedRests(t *testing.T) {
	const small, large, held = 100, 101, 102
	f := New(Config{Rest: time.Hour})
	by := metadata.Holder{Node: 1, Run: 1}
	f.Unnamed(small, mostRest)
	f.Unnamed(held, 0)
	f.Unnamed(large, mostRest+1)
	taken := func(want ...metadata.Ino) {
		t.Helper()
		var got []metadata.Ino
		for _, x := range f.Take(10) {
			got = append(got, x.Ino)
		}
		if !slices.Equal(got, want) {
			t.Errorf("removed are %v, want %v", got, want)
		}
	}
	taken(large)
	f.endRests()
	if err := f.Registry.Open(by, held, 1); err != nil {
		t.Errorf("open of a file that rests: %v", err)
	}
	taken()
	f.endRests()
	taken(small)
	if err := f.Registry.Open(by, small, 2); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("open of a file that is being removed: %v, want ESTALE", err)
	}
	f.Close(by, metadata.Opened{Ino: held, Ticket: 1})
	taken(held)
}

// TestOpenAhead: only a file that has a name and is open on no node is opened ahead; all others are unaffected.
func TestOpenAhead(t *testing.T) {
	w := newWorld()
	f := New(Config{Store: w, Places: w.places, Remove: w.remove})
	by, other := on(1), on(2)
	free, taken, orphan, own := create(t, f, by, 1), create(t, f, other, 1), create(t, f, by, 2), create(t, f, by, 3)
	for i, ino := range []metadata.Ino{free, orphan} {
		f.Close(by, metadata.Opened{Ino: ino, Ticket: metadata.Ticket(i + 1)})
	}
	f.Orphaned(orphan, false)
	ask := func() (inos []metadata.Ino) {
		t.Helper()
		as, _, err := f.OpenAhead(t.Context(), by, []metadata.OpenAhead{{Ino: orphan, Ticket: 5}, {Ino: free, Ticket: 6}, {Ino: taken, Ticket: 7}, {Ino: own, Ticket: 9}, {Ino: 99, Ticket: 8}})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range as {
			inos = append(inos, a.Ino)
		}
		return inos
	}
	f.Await(3)
	if got := ask(); len(got) > 0 {
		t.Errorf("%v opened while a node may have everything open", got)
	}
	f.Answered(3)
	if got := ask(); !slices.Equal(got, []metadata.Ino{free}) {
		t.Errorf("%v opened, want %v", got, free)
	}
	for ino, want := range map[metadata.Ino]bool{free: true, taken: false, orphan: false, own: true, 99: false} {
		if _, open := f.Has(by, ino, func() {}); open != want {
			t.Errorf("inode %v open: %v, want %v", ino, open, want)
		}
	}
	if f.Registry.Take(10)[0].Ino != orphan {
		t.Error("the orphan stays")
	}
}
