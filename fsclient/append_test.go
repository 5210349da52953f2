package fsclient_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
)

// TestPlaceOfLateAppendIsNotReused: one part of an append to two chunks fails with ENOSPC and the other may still
// arrive. No later append gets that place.
func TestPlaceOfLateAppendIsNotReused(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f, a, err := cs[0].CreateOpen(ctx, metadata.RootIno, "log", metadata.New{
		Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Striped, Width: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	before := int(a.Layout.Chunk()) - 100
	must(t, before)(f.WriteAt(ctx, bytes.Repeat([]byte{'-'}, before), 0))
	for _, errs := range [][2]error{{syscall.ENOSPC, nil}, {syscall.ETIMEDOUT, syscall.ENOSPC}} {
		if err := f.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		for i, node := range f.Order() {
			ms[node].set(errs[i], nil)
		}
		if n, err := f.Append(ctx, bytes.Repeat([]byte{'x'}, 200)); n != 0 || err == nil {
			t.Errorf("append = %d, %v, want an error", n, err)
		}
		for _, m := range ms {
			m.set(nil, nil)
		}
		g, err := cs[1].Open(ctx, f.Ino())
		if err != nil {
			t.Fatal(err)
		}
		must(t, 50)(g.Append(ctx, bytes.Repeat([]byte{'B'}, 50)))
		if err := errors.Join(f.Flush(ctx), g.Close(ctx)); err != nil {
			t.Fatal(err)
		}
		if a, err := cs[1].Getattr(ctx, f.Ino()); err != nil || a.Size < int64(before)+200+50 {
			t.Errorf("with %v the next append ends at %d, %v, in the place of the one that may arrive, which begins at %d", errs, a.Size, err, before)
		}
		if _, err := cs[1].Truncate(ctx, f.Ino(), int64(before)); err != nil {
			t.Fatal(err)
		}
	}
	closed(t, f)
}

// settledHome counts the requests that report complete appends.
type settledHome struct {
	*clienttest.Home
	n atomic.Int64
}

func (h *settledHome) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	if q.Len == 0 {
		h.n.Add(1)
	}
	return h.Home.Append(ctx, by, q)
}

// TestInvisibleAppendIsNotClean: an append beyond the stored size, because an earlier append by another node is in
// flight, would lose its place with this process, which is the home. The home is asked until the stored size covers the
// append, without a later call.
func TestInvisibleAppendIsNotClean(t *testing.T) {
	t.Parallel()
	j, ms, _ := metered(t, 2)
	h := &settledHome{Home: j.homes[0]}
	j.meta[0] = h
	c := j.client(t, 0, nil)
	f := onNode(t, c, "log", 1)
	if f.Ino().Home() != 0 {
		t.Fatalf("the home is node %d", f.Ino().Home())
	}
	g := open(t, j.client(t, 1, nil), f.Ino())
	gate, done := make(chan struct{}), make(chan error, 1)
	ms[1].set(nil, gate)
	before := ms[1].writes.Load()
	go func() { _, err := g.Append(ctx, pattern(100)); done <- err }()
	eventually(t, "an append is in flight", func() bool { return ms[1].writes.Load() > before })
	ms[1].set(nil, nil)
	w := f.Writer()
	must(t, 100)(w.Append(ctx, pattern(100)))
	asked := h.n.Load()
	eventually(t, "the home is asked repeatedly", func() bool { return h.n.Load() >= asked+2 })
	if w.Clean() {
		t.Error("clean although the stored size does not cover the append")
	}
	close(gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stored size covers the append", w.Clean)
	if a, err := j.homes[0].Store.Getattr(ctx, f.Ino()); err != nil || a.Size != 200 {
		t.Errorf("the stored size is %d, %v, want 200", a.Size, err)
	}
	closed(t, f)
	closed(t, g)
}

// TestRecallEndsBufferedAppends: when a home recalls a file, earlier appends reach the file before any append by
// another node, and later ones are not buffered, even if a request sent before the recall is answered after it.
func TestRecallEndsBufferedAppends(t *testing.T) {
	j := newJob(t, 2)
	h := &appendHome{Home: j.homes[0]}
	j.meta[0] = h
	c, other := j.client(t, 1, nil), j.client(t, 0, nil)
	a := create(t, c, metadata.RootIno, "log", 0)
	f := open(t, c, a.Ino)
	w := f.Writer()
	h.append(func() { // another node opens the file before this answer arrives
		c.Recall(metadata.Recall{Home: a.Ino.Home(), Only: []metadata.Ino{a.Ino}})
	})
	must(t, 1)(w.Append(ctx, []byte("1")))
	must(t, 1)(w.Append(ctx, []byte("2")))
	if n := h.places.Load(); n != 2 {
		t.Errorf("the home was asked for %d places, want 2: an append was buffered after a recall", n)
	}
	must(t, 1)(w.Append(ctx, []byte("3")))
	must(t, 1)(w.Append(ctx, []byte("4")))
	g := open(t, other, a.Ino)
	c.Recall(metadata.Recall{Home: a.Ino.Home(), Only: []metadata.Ino{a.Ino}}) // as before an open returns
	must(t, 1)(g.Append(ctx, []byte("B")))
	must(t, 1)(w.Append(ctx, []byte("5")))
	must(t, 1)(g.Append(ctx, []byte("C")))
	closed(t, f)
	closed(t, g)
	if got := read(t, other, a.Ino); string(got) != "1234B5C" {
		t.Errorf("the file is %q, want %q", got, "1234B5C")
	}
}

// TestRecallIsBusy: the reply to a recall reports to the home that the recalled data has not arrived yet.
func TestRecallIsBusy(t *testing.T) {
	t.Parallel()
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[1], "log", 1)
	w := f.Writer()
	must(t, 1)(w.Append(ctx, []byte("1")))
	gate := make(chan struct{})
	ms[1].set(nil, gate)
	must(t, 1)(w.Append(ctx, []byte("2")))
	q := metadata.Recall{Home: f.Ino().Home(), Only: []metadata.Ino{f.Ino()}}
	if !cs[1].Recall(q).Busy {
		t.Error("an append hangs, and the answer to a recall does not say so")
	}
	close(gate)
	eventually(t, "the append has arrived", func() bool { return !cs[1].Recall(q).Busy })
	closed(t, f)
}

// appendHome calls a function once before it answers an Append, and counts the places requested.
type appendHome struct {
	*clienttest.Home
	before atomic.Pointer[func()]
	places atomic.Int64
}

func (h *appendHome) append(fn func()) { h.before.Store(&fn) }

func (h *appendHome) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	if q.Len > 0 {
		h.places.Add(1)
	}
	p, err := h.Home.Append(ctx, by, q)
	if fn := h.before.Swap(nil); fn != nil {
		(*fn)()
	}
	return p, err
}
