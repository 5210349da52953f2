package opens

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

// appender is the appending part of a node's client.
type appender struct {
	by     metadata.Holder
	seq    uint64
	flying bool
}

func (a *appender) next(n int64) metadata.Append {
	a.seq++
	return metadata.Append{Ino: 1000, Seq: a.seq, Len: n}
}

func (a *appender) done() metadata.Append { return metadata.Append{Ino: 1000, Seq: a.seq + 1} }

// one returns a world with one empty file, inode 1000.
func one(t *testing.T) (*world, *Files) {
	t.Helper()
	w := newWorld()
	w.attrs[1000] = metadata.Attr{Ino: 1000, Mode: syscall.S_IFREG, Nlink: 1}
	return w, serve(t, w)
}

func place(t *testing.T, f *Files, by metadata.Holder, q metadata.Append) metadata.Place {
	t.Helper()
	p, err := f.Append(context.Background(), by, q)
	if err != nil {
		t.Fatalf("Append(%+v) = %v", q, err)
	}
	return p
}

func wantPlace(t *testing.T, what string, p metadata.Place, off, size int64) {
	t.Helper()
	if p.Off != off || p.Attr.Size != size {
		t.Errorf("%s: at %d, size %d, want at %d, size %d", what, p.Off, p.Attr.Size, off, size)
	}
}

func TestPlaces(t *testing.T) {
	_, f := one(t)
	a, b := &appender{by: on(1)}, &appender{by: on(2)}
	q := a.next(10)
	wantPlace(t, "the first", place(t, f, a.by, q), 0, 0)
	wantPlace(t, "the first again", place(t, f, a.by, q), 0, 0)
	wantPlace(t, "another node", place(t, f, b.by, b.next(5)), 10, 0)
	wantPlace(t, "the second is complete", place(t, f, b.by, b.done()), 0, 0)
	wantPlace(t, "the first too", place(t, f, a.by, a.done()), 0, 15)
	q = a.next(10)
	q.End = 100
	wantPlace(t, "behind another write", place(t, f, a.by, q), 100, 100)
	late := a.done()
	a.seq++
	if _, err := f.Append(context.Background(), a.by, metadata.Append{Ino: 1000, Seq: 1, Len: 3}); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("a delayed append = %v, want ESTALE", err)
	}
	q = a.next(7)
	q.Unused = 2
	wantPlace(t, "the place before was not used", place(t, f, a.by, q), 100, 100)
	wantPlace(t, "a word that comes late", place(t, f, a.by, late), 0, 100)
	if s := f.Stats(); s.Open != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAppendErrors(t *testing.T) {
	w, f := one(t)
	ctx := context.Background()
	w.attrs[2000] = metadata.Attr{Ino: 2000, Mode: syscall.S_IFDIR, Nlink: 2}
	for _, c := range []struct {
		q    metadata.Append
		want error
	}{
		{metadata.Append{Ino: 3000, Seq: 1, Len: 1}, syscall.ENOENT},
		{metadata.Append{Ino: 2000, Seq: 1, Len: 1}, syscall.EISDIR},
		{metadata.Append{Ino: 1000, Seq: 1, Len: -1}, syscall.EFBIG},
		{metadata.Append{Ino: 1000, Seq: 1, Len: 1<<63 - 1}, syscall.EFBIG},
	} {
		if _, err := f.Append(ctx, on(1), c.q); !errors.Is(err, c.want) {
			t.Errorf("Append(%+v) = %v, want %v", c.q, err, c.want)
		}
	}
	if len(f.files) != 0 {
		t.Errorf("%d files are remembered", len(f.files))
	}
}

// TestLostNodeUnblocksAppends: an outstanding append of a lost node does not block others.
func TestLostNodeUnblocksAppends(t *testing.T) {
	_, f := one(t)
	a, b := &appender{by: on(1)}, &appender{by: on(2)}
	mustOpen(t, f.Registry, a.by, 1000, 1)
	place(t, f, a.by, a.next(10))
	place(t, f, b.by, b.next(10))
	q := b.done()
	q.Wait = 20
	got := make(chan metadata.Place)
	go func() {
		p, err := f.Append(context.Background(), b.by, q)
		if err != nil {
			t.Error(err)
		}
		got <- p
	}()
	f.Lost(1)
	wantPlace(t, "complete", <-got, 0, 20)
}

// TestLostNodeShowsAppends: appends after an unfinished append become visible when the node of the latter is lost,
// without a further append, even if their writer has closed the file.
func TestLostNodeShowsAppends(t *testing.T) {
	w, f := one(t)
	a, b := &appender{by: on(1)}, &appender{by: on(2)}
	mustOpen(t, f.Registry, a.by, 1000, 1)
	mustOpen(t, f.Registry, b.by, 1000, 1)
	place(t, f, a.by, a.next(10))
	place(t, f, b.by, b.next(10))
	place(t, f, b.by, b.done())
	if err := f.Closed(t.Context(), b.by, []metadata.Opened{{Ino: 1000, Ticket: 1}}); err != nil {
		t.Fatal(err)
	}
	f.Lost(1)
	eventually(t, "all is seen", func() bool { got, err := w.Getattr(t.Context(), 1000); return err == nil && got.Size == 20 })
}

// TestRestartedHome: a restarted home reserves no place until it knows all reserved places.
func TestRestartedHome(t *testing.T) {
	w, f := one(t)
	w.attrs[1000] = metadata.Attr{Ino: 1000, Mode: syscall.S_IFREG, Nlink: 1, Size: 50}
	f.Recover(1)
	f.Recover(2)
	a := &appender{by: on(1), seq: 4}
	again := a.next(10)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := f.Append(ctx, a.by, again); !errors.Is(err, syscall.EINTR) {
		t.Errorf("Append while nodes are awaited = %v, want EINTR", err)
	}
	f.Add(on(1), []metadata.Opened{{Ino: 1000, Ticket: 1, Written: []metadata.Extent{{Off: 70, Len: 20}}, Outstanding: metadata.Reservation{
		Seq: again.Seq, Extent: metadata.Extent{Off: -1, Len: 10},
	}}})
	f.Add(on(2), []metadata.Opened{{Ino: 1000, Ticket: 1, Outstanding: metadata.Reservation{Seq: 7, Extent: metadata.Extent{Off: 60, Len: 10}}}})
	got := make(chan metadata.Place)
	go func() {
		p, err := f.Append(context.Background(), a.by, again)
		if err != nil {
			t.Error(err)
		}
		got <- p
	}()
	f.Answered(1)
	f.Lost(3)
	f.Answered(2)
	wantPlace(t, "where nobody has a place", <-got, 50, 50)
	wantPlace(t, "behind all", place(t, f, on(3), metadata.Append{Ino: 1000, Seq: 1, Len: 10}), 90, 50)
	wantPlace(t, "the first is complete", place(t, f, a.by, a.done()), 0, 60)
	wantPlace(t, "the flight is complete", place(t, f, on(2), metadata.Append{Ino: 1000, Seq: 8}), 0, 90)
}

// TestCutAndAppend: a frozen file accepts no appends; once its size is set, appends start there.
func TestCutAndAppend(t *testing.T) {
	w, f := one(t)
	ctx := context.Background()
	a, b := &appender{by: on(1)}, &appender{by: on(2)}
	place(t, f, a.by, a.next(10))
	frozen := make(chan struct{})
	go func() {
		defer close(frozen)
		if _, err := f.Append(ctx, b.by, metadata.Append{Ino: 1000, Freeze: 1}); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "somebody waits for the flight", func() bool {
		f.Registry.mu.Lock()
		defer f.Registry.mu.Unlock()
		wait, _ := f.files[1000].appends.Blocked(a.by.Node, metadata.Append{Len: 1}, time.Now())
		return wait != nil
	})
	place(t, f, a.by, a.done())
	<-frozen
	short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	if _, err := f.Append(short, a.by, a.next(5)); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("Append to a frozen file = %v, want ETIMEDOUT", err)
	}
	set := func(size int64) {
		t.Helper()
		_, err := f.Truncate(1000, metadata.Change{Size: size}, func() (metadata.Attr, error) {
			return w.Setattr(ctx, 1000, metadata.Change{Set: metadata.SetSize, Size: size})
		})
		if err != nil {
			t.Error(err)
		}
	}
	set(3)
	wantPlace(t, "after the cut", place(t, f, a.by, a.next(5)), 3, 3)
	place(t, f, a.by, a.done())
	place(t, f, b.by, metadata.Append{Ino: 1000, Freeze: 1})
	place(t, f, b.by, metadata.Append{Ino: 1000, Freeze: 1, Thaw: true})
	wantPlace(t, "after the thaw", place(t, f, a.by, a.next(5)), 8, 8)
	set(1000)
	wantPlace(t, "behind the new end", place(t, f, a.by, a.next(5)), 1000, 1000)
	if _, err := f.Truncate(1000, metadata.Change{}, func() (metadata.Attr, error) { return metadata.Attr{}, syscall.EIO }); !errors.Is(err, syscall.EIO) {
		t.Errorf("Cut = %v", err)
	}
	wantPlace(t, "after a cut that failed", place(t, f, a.by, a.next(5)), 1005, 1005)
}

// TestFreezeEnds: a client that freezes a file and then dies or never thaws it does not block others for ever.
func TestFreezeEnds(t *testing.T) {
	w := newWorld()
	w.attrs[1000] = metadata.Attr{Ino: 1000, Mode: syscall.S_IFREG, Nlink: 1}
	var mu sync.Mutex
	now := time.Unix(1000, 0)
	f := New(Config{Store: w, Places: w.places, Remove: w.remove, Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}})
	place(t, f, on(2), metadata.Append{Ino: 1000, Freeze: 1})
	mu.Lock()
	now = now.Add(appends.FreezeTime)
	mu.Unlock()
	wantPlace(t, "later", place(t, f, on(1), metadata.Append{Ino: 1000, Seq: 1, Len: 3}), 0, 0)
	place(t, f, on(2), metadata.Append{Ino: 1000, Freeze: 1, Thaw: true})
}

// TestAppendsAgainstBytes: for any order of appends, completions, lost nodes and truncates, no byte is reserved twice,
// and all visible bytes are written.
func TestAppendsAgainstBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	w, f := one(t)
	nodes := []*appender{{by: on(1)}, {by: on(2)}, {by: on(3)}}
	for _, n := range nodes {
		mustOpen(t, f.Registry, n.by, 1000, 1)
	}
	places := make([]metadata.Place, len(nodes))
	lens := make([]int64, len(nodes))
	var written []bool // by byte: written, or given up with its node
	fill := func(i int) {
		for k := places[i].Off; k < places[i].Off+lens[i] && k < int64(len(written)); k++ {
			written[k] = true
		}
		nodes[i].flying = false
	}
	for step := range 5000 {
		i := rng.IntN(len(nodes))
		n := nodes[i]
		switch rng.IntN(8) {
		case 0, 1, 2, 3:
			if n.flying {
				fill(i)
			}
			lens[i] = rng.Int64N(9) + 1
			places[i] = place(t, f, n.by, n.next(lens[i]))
			if places[i].Off != int64(len(written)) {
				t.Fatalf("step %d: place %d, %d bytes are given", step, places[i].Off, len(written))
			}
			written = append(written, make([]bool, lens[i])...)
			n.flying = true
		case 4, 5:
			if n.flying {
				fill(i)
			}
			place(t, f, n.by, n.done())
		case 6:
			f.Lost(n.by.Node)
			fill(i)
			mustOpen(t, f.Registry, n.by, 1000, metadata.Ticket(step))
		case 7:
			if slices.ContainsFunc(nodes, func(n *appender) bool { return n.flying }) {
				continue // the truncate would wait for them
			}
			size := rng.Int64N(int64(len(written)) + 1)
			if _, err := f.Truncate(1000, metadata.Change{Size: size}, func() (metadata.Attr, error) {
				return w.Setattr(context.Background(), 1000, metadata.Change{Set: metadata.SetSize, Size: size})
			}); err != nil {
				t.Fatal(err)
			}
			written = written[:size]
		}
		a, err := w.Getattr(context.Background(), 1000)
		if err != nil || a.Size > int64(len(written)) || slices.Contains(written[:a.Size], false) {
			t.Fatalf("step %d: size %d of %d, %v, with bytes that are not written", step, a.Size, len(written), err)
		}
	}
	for i, n := range nodes {
		if n.flying {
			fill(i)
		}
		place(t, f, n.by, n.done())
	}
	if a, err := w.Getattr(context.Background(), 1000); err != nil || a.Size != int64(len(written)) {
		t.Errorf("at the end: size %d, %v, want %d", a.Size, err, len(written))
	}
	for _, n := range nodes {
		f.Close(n.by, metadata.Opened{Ino: 1000, Ticket: 1 << 60})
	}
	eventually(t, "nothing is remembered", func() bool {
		f.Registry.mu.Lock()
		defer f.Registry.mu.Unlock()
		return len(f.files) == 0
	})
}

// TestOpenEndsAlone: an open, and any concurrent open, waits until the only node that had the file open has answered a
// recall. Later opens send no recall.
func TestOpenEndsAlone(t *testing.T) {
	w := newWorld()
	asked, answer := make(chan metadata.NodeID, 10), make(chan error)
	f := serveWith(t, Config{
		Store: w, Places: w.places, Remove: w.remove,
		Recall: func(_ context.Context, id metadata.NodeID, q metadata.Recall) (metadata.Recalled, error) {
			if len(q.Only) != 1 || q.Only[0] != 1000 {
				t.Errorf("node %d was asked for %v", id, q.Only)
			}
			asked <- id
			return metadata.Recalled{}, <-answer
		},
	})
	w.attrs[1000] = metadata.Attr{Ino: 1000, Mode: syscall.S_IFREG, Nlink: 1}
	opened := make(chan error, 10)
	open := func(id metadata.NodeID, tick metadata.Ticket) {
		_, err := f.Open(t.Context(), on(id), 1000, metadata.Opening{Ticket: tick})
		opened <- err
	}
	a := &appender{by: on(1)}
	open(1, 1)
	if p := place(t, f, a.by, a.next(10)); !p.Alone {
		t.Error("node 1 is not alone")
	}
	open(1, 2)
	go open(2, 3)
	first := <-asked
	go open(3, 4)
	if second := <-asked; first != 1 || second != 1 {
		t.Errorf("nodes %d and %d were asked, want node 1 twice", first, second)
	}
	if p := place(t, f, a.by, a.next(10)); p.Alone {
		t.Error("node 1 is alone while others open the file")
	}
	if n := len(opened); n != 2 {
		t.Errorf("%d opens have returned, want the 2 of node 1", n)
	}
	close(answer)
	eventually(t, "both opens", func() bool { return len(opened) == 4 })
	open(4, 5)
	if len(asked) > 0 {
		t.Error("node 1 was asked again")
	}
	for range 5 {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
}

// TestOpenWaitsForAll: an open waits until every node that may buffer appends has sent them. After a restart of the
// home, these are all nodes that had the file open.
func TestOpenWaitsForAll(t *testing.T) {
	w := newWorld()
	w.attrs[1000] = metadata.Attr{Ino: 1000, Mode: syscall.S_IFREG, Nlink: 1}
	var asked []metadata.NodeID
	f := serveWith(t, Config{
		Store: w, Places: w.places, Remove: w.remove,
		Recall: func(_ context.Context, id metadata.NodeID, _ metadata.Recall) (metadata.Recalled, error) {
			asked = append(asked, id)
			return metadata.Recalled{Busy: len(asked) < 3}, nil
		},
	})
	for id := metadata.NodeID(1); id <= 2; id++ {
		f.Recover(id)
		f.Add(on(id), []metadata.Opened{{Ino: 1000, Ticket: 1}})
		f.Answered(id)
	}
	for _, id := range []metadata.NodeID{3, 4} {
		if _, err := f.Open(t.Context(), on(id), 1000, metadata.Opening{Ticket: 2}); err != nil {
			t.Fatal(err)
		}
		if want := []metadata.NodeID{1, 1, 1, 2}; !slices.Equal(asked, want) {
			t.Errorf("after the open by node %d: asked were %v, want %v", id, asked, want)
		}
	}
}
