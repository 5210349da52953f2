package fsclient_test

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
)

// cutHome loses the connection when a size is set.
type cutHome struct{ *clienttest.Home }

func (h cutHome) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	if c.Set&metadata.SetSize != 0 {
		return metadata.Attr{}, syscall.EHOSTUNREACH
	}
	return h.Home.Setattr(ctx, ino, c)
}

// TestFailedTruncateIsANewVersion: a truncate that fails after cutting the data counts as a change on all nodes.
func TestFailedTruncateIsANewVersion(t *testing.T) {
	j := newJob(t, 2)
	a := create(t, j.clients[0], metadata.RootIno, "f", 0)
	f := open(t, j.clients[0], a.Ino)
	write(t, f, pattern(100_000), 0)
	closed(t, f)
	before, err := j.clients[1].Getattr(ctx, a.Ino)
	if err != nil {
		t.Fatal(err)
	}
	j.meta[0] = cutHome{j.homes[0]}
	if _, err := j.client(t, 1, nil).Truncate(ctx, a.Ino, 10); err == nil {
		t.Fatal("truncate succeeded")
	}
	if got := read(t, j.clients[1], a.Ino); bytes.Equal(got, pattern(100_000)) {
		t.Fatal("nothing was cut")
	}
	eventually(t, "the file has a new version", func() bool {
		after, err := j.clients[1].Getattr(ctx, a.Ino)
		return err == nil && after.Ctime > before.Ctime
	})
}

// racingHome calls a function before it sets a size.
type racingHome struct {
	*clienttest.Home
	before func()
	grown  chan struct{} // has an element once a size is about to be published
}

func (h *racingHome) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	switch {
	case c.Set&metadata.SetSize != 0:
		h.before()
	case c.Set&metadata.GrowSize != 0:
		select {
		case h.grown <- struct{}{}:
		default:
		}
	}
	return h.Home.Setattr(ctx, ino, c)
}

// TestCutBytesDoNotComeBack: another node publishes its writes after a truncate has cut the data and before it sets the
// size. Afterwards either the file has the published size, or those bytes were removed.
func TestCutBytesDoNotComeBack(t *testing.T) {
	j := newJob(t, 2)
	h := &racingHome{Home: j.homes[0], grown: make(chan struct{}, 1)}
	j.meta[0] = h
	c0, c1 := j.client(t, 0, nil), j.client(t, 1, nil)
	a, err := c0.Create(ctx, metadata.RootIno, "f", metadata.New{
		Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Striped, Width: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	off, published := a.Layout.Chunk(), make(chan error, 1)
	f := open(t, c1, a.Ino)
	write(t, f, pattern(100), off) // on the node that has no chunk up to the size known to the home
	h.before = sync.OnceFunc(func() {
		go func() { published <- f.Flush(ctx) }()
		<-h.grown
		select { // it is published now, or only after the truncate
		case err := <-published:
			published <- err
		case <-time.After(50 * time.Millisecond):
		}
	})
	if _, err := c0.Truncate(ctx, a.Ino, 10); err != nil {
		t.Fatal(err)
	}
	if err := <-published; err != nil {
		t.Fatal(err)
	}
	after, err := j.homes[0].Getattr(ctx, a.Ino)
	if err != nil {
		t.Fatal(err)
	}
	h.before = func() {}
	if _, err := c0.Truncate(ctx, a.Ino, off+100); err != nil {
		t.Fatal(err)
	}
	if got := read(t, c0, a.Ino)[off:]; after.Size == 10 && !bytes.Equal(got, make([]byte, 100)) {
		t.Errorf("the size was 10; once the file has grown to %d, its last bytes are %x", off+100, got[:10])
	}
	closed(t, f)
}

// crowdedHome refuses a number of requests that wait for truncates.
type crowdedHome struct {
	*clienttest.Home
	refuse atomic.Int32
}

func (h *crowdedHome) Setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	if c.Set&metadata.GrowSize != 0 && h.refuse.Add(-1) >= 0 {
		return metadata.Attr{}, syscall.EUSERS
	}
	return h.Home.Setattr(ctx, ino, c)
}

func (h *crowdedHome) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	if q.Announces() && h.refuse.Add(-1) >= 0 {
		return metadata.Place{}, syscall.EUSERS
	}
	return h.Home.Append(ctx, by, q)
}

// TestCrowd: sizes and truncates that a home refuses because too many requests wait there are sent again; an
// interrupted caller gets EINTR.
func TestCrowd(t *testing.T) {
	j := newJob(t, 1)
	h := &crowdedHome{Home: j.homes[0]}
	j.meta[0] = h
	c := j.client(t, 0, nil)
	a, err := c.Create(ctx, metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, c, a.Ino)
	write(t, f, pattern(100), 0)
	h.refuse.Store(2)
	if err := f.Flush(ctx); err != nil || h.refuse.Load() >= 0 {
		t.Errorf("flush: %v, %d refusals are left", err, h.refuse.Load())
	}
	h.refuse.Store(2)
	if a, err := c.Truncate(ctx, a.Ino, 10); err != nil || a.Size != 10 || h.refuse.Load() >= 0 {
		t.Errorf("truncate: size %d, %v, %d refusals are left", a.Size, err, h.refuse.Load())
	}
	h.refuse.Store(1 << 30)
	interrupted, interrupt := context.WithCancel(ctx)
	interrupt()
	if _, err := c.Truncate(interrupted, a.Ino, 5); !errors.Is(err, syscall.EINTR) {
		t.Errorf("interrupted: %v, want EINTR", err)
	}
	closed(t, f)
}
