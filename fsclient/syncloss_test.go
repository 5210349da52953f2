package fsclient_test

import (
	"context"
	"errors"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// lostWrite lets w buffer bytes after its first write, which are then lost on node 1.
func lostWrite(t *testing.T, ms []*meteredStore, f *fsclient.File, w *fsclient.Writer, off int64) {
	t.Helper()
	must(t, 10)(w.WriteAt(ctx, pattern(10), off))
	ms[1].set(syscall.EIO, nil)
	must(t, 10)(w.WriteAt(ctx, pattern(10), off+10))
	if _, err := f.Read(ctx, make([]byte, 1), 0, fsclient.ReadOpts{}); err != nil {
		t.Fatal(err)
	}
	ms[1].set(nil, nil)
}

// TestLossFailsEverySync: the loss of acknowledged bytes fails one fsync of each descriptor open at that time, and no
// other call on descriptors that did not write them.
func TestLossFailsEverySync(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	a, b, told, reader := f.Writer(), f.Writer(), f.Writer(), f.Writer()
	lostWrite(t, ms, f, a, 0)
	late := f.Writer()
	for range 2 { // neither reports the loss, nor hides it from Sync
		if err := b.Flush(ctx); err != nil {
			t.Errorf("a descriptor that wrote nothing gets %v from Flush", err)
		}
		if _, err := b.WriteAt(ctx, []byte("x"), 5000); err != nil {
			t.Errorf("a descriptor that wrote nothing gets %v from a write", err)
		}
	}
	if err := told.Sync(ctx); !errors.Is(err, syscall.EIO) {
		t.Errorf("the first sync of another descriptor = %v, want EIO", err)
	}
	if _, err := a.WriteAt(ctx, []byte("x"), 6000); !errors.Is(err, syscall.EIO) {
		t.Errorf("the next write of the writer = %v, want EIO", err)
	}
	for name, w := range map[string]struct {
		w    *fsclient.Writer
		want error
	}{
		"another writer":    {b, syscall.EIO},
		"a reader":          {reader, syscall.EIO},
		"reported by sync":  {told, nil},
		"reported by write": {a, nil},
		"opened later":      {late, nil},
		"opened last":       {f.Writer(), nil},
	} {
		if err := w.w.Sync(ctx); !errors.Is(err, w.want) {
			t.Errorf("%s: Sync = %v, want %v", name, err, w.want)
		}
		if err := w.w.Sync(ctx); err != nil {
			t.Errorf("%s: the next Sync = %v", name, err)
		}
	}
	closed(t, f)
}

// TestSyncOfSeveralLosses: Sync reports losses of other descriptors even to a descriptor that has reported its own.
func TestSyncOfSeveralLosses(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	a, b := f.Writer(), f.Writer()
	lostWrite(t, ms, f, a, 0)
	lostWrite(t, ms, f, b, 1000)
	if err := b.Flush(ctx); !errors.Is(err, syscall.EIO) {
		t.Errorf("Flush after its own loss = %v, want EIO", err)
	}
	for _, w := range []*fsclient.Writer{a, b} {
		if err := w.Sync(ctx); !errors.Is(err, syscall.EIO) {
			t.Errorf("Sync after the loss of the other = %v, want EIO", err)
		}
		if err := errors.Join(w.Sync(ctx), w.Flush(ctx)); err != nil {
			t.Errorf("the next calls = %v", err)
		}
	}
	closed(t, f)
}

// TestSyncThatFailsOnce: an error that a disk reports once fails a sync on every descriptor.
func TestSyncThatFailsOnce(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	a, b := f.Writer(), f.Writer()
	must(t, 10)(a.WriteAt(ctx, pattern(10), 0))
	ms[1].onSync(func(context.Context) error { return syscall.EIO })
	if err := a.Sync(ctx); !errors.Is(err, syscall.EIO) {
		t.Errorf("the first Sync = %v, want EIO", err)
	}
	ms[1].onSync(nil)
	if err := b.Sync(ctx); !errors.Is(err, syscall.EIO) {
		t.Errorf("Sync of the other = %v, want EIO", err)
	}
	if err := errors.Join(a.Sync(ctx), b.Sync(ctx)); err != nil {
		t.Errorf("the next calls = %v", err)
	}
	closed(t, f)
}

// TestSyncErrorIsRepeated: the error of a part of an O_SYNC write is returned again by the next call, as in
// TestErrorIsRepeated, if that part may not be the first.
func TestSyncErrorIsRepeated(t *testing.T) {
	const part = 512 << 10
	through := func(w *fsclient.Writer, off int64) error {
		_, err := w.WriteThrough(ctx, pattern(part), off)
		return err
	}
	at := func(w *fsclient.Writer, off int64) error {
		if err := through(w, off); err != nil {
			return err
		}
		return w.SyncWrite(ctx)
	}
	appended := func(w *fsclient.Writer, _ int64) error {
		_, err := w.AppendThrough(ctx, pattern(part))
		if err == nil {
			err = w.SyncWrite(ctx)
		}
		return err
	}
	flushed := func(w *fsclient.Writer, _ int64) error { return w.Flush(ctx) }
	synced := func(w *fsclient.Writer, _ int64) error { return w.Sync(ctx) }
	type doing func(w *fsclient.Writer, off int64) error
	for name, c := range map[string]struct {
		write []doing // the last one fails
		next  doing
		again bool
	}{
		"the first":         {[]doing{at}, at, false},
		"the rest":          {[]doing{at, at}, at, true},
		"the third":         {[]doing{at, at, at}, at, true},
		"appended":          {[]doing{appended, appended}, appended, true},
		"closed after that": {[]doing{at, at}, flushed, true},
		"fsynced":           {[]doing{at, at}, synced, true},
		"fsync itself":      {[]doing{at, through, synced}, synced, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, ms, cs := metered(t, 2)
			f := onNode(t, cs[0], "f", 1)
			w := f.Writer()
			last := len(c.write) - 1
			for i, write := range c.write[:last] {
				if err := write(w, int64(i*part)); err != nil {
					t.Fatal(err)
				}
			}
			ms[1].onSync(func(context.Context) error { return syscall.EIO })
			if err := c.write[last](w, int64(last*part)); !errors.Is(err, syscall.EIO) {
				t.Errorf("the part itself = %v, want EIO", err)
			}
			ms[1].onSync(nil)
			if err := c.next(w, int64(last*part)); errors.Is(err, syscall.EIO) != c.again {
				t.Errorf("the next call = %v", err)
			}
			if err := errors.Join(c.next(w, int64(last*part)), w.Close(ctx)); err != nil {
				t.Errorf("reported once more: %v", err)
			}
		})
	}
}

// TestConcurrentSyncs: a sync waits for bytes that another sync is making durable, and syncs them itself if the other
// was interrupted.
func TestConcurrentSyncs(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	a, b := f.Writer(), f.Writer()
	must(t, 10)(a.WriteAt(ctx, pattern(10), 0))
	begun := make(chan struct{})
	ms[1].onSync(func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		return syscall.EINTR
	})
	short, interrupt := context.WithCancel(ctx)
	first := make(chan error, 1)
	go func() { first <- a.Sync(short) }()
	<-begun
	synced := 0
	ms[1].onSync(func(context.Context) error { synced++; return nil })
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := b.Sync(canceled); !errors.Is(err, syscall.EINTR) {
		t.Errorf("while another sync waits for the disk: %v, want EINTR", err)
	}
	interrupt()
	if err := <-first; !errors.Is(err, syscall.EINTR) {
		t.Errorf("the interrupted sync = %v, want EINTR", err)
	}
	if err := b.Sync(ctx); err != nil || synced != 1 {
		t.Errorf("%d syncs, %v, want 1", synced, err)
	}
	closed(t, f)
}

// TestSyncAfterReopen: fsync by a process that opens a file after its writer, on any node, closed it syncs the nodes
// that have the bytes, until one such sync has succeeded. Other nodes may be down.
func TestSyncAfterReopen(t *testing.T) {
	_, ms, cs := metered(t, 3)
	f, a, err := cs[0].CreateOpen(ctx, metadata.RootIno, "f", metadata.New{
		Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Striped, Width: 3},
	})
	if err != nil {
		t.Fatal(err)
	}
	order, n := f.Order(), int(a.Layout.Chunk())+1 // on two nodes
	must(t, n)(f.WriteAt(ctx, pattern(n), 0))
	closed(t, f)
	for _, c := range cs {
		synced := make([]atomic.Int64, 3)
		var fail atomic.Bool
		fail.Store(true)
		for k, id := range order {
			ms[id].onSync(func(context.Context) error {
				synced[k].Add(1)
				if k == 2 || fail.Load() {
					return syscall.EHOSTDOWN
				}
				return nil
			})
		}
		g := open(t, c, a.Ino)
		w := g.Writer()
		if err := w.Sync(ctx); !errors.Is(err, syscall.EHOSTDOWN) {
			t.Errorf("fsync with nodes that do not answer = %v", err)
		}
		fail.Store(false)
		for k := range synced {
			synced[k].Store(0)
		}
		for range 2 {
			if err := w.Sync(ctx); err != nil {
				t.Error(err)
			}
		}
		if n := [3]int64{synced[0].Load(), synced[1].Load(), synced[2].Load()}; n != [3]int64{1, 1, 0} {
			t.Errorf("the nodes with the first, the second and no bytes got %v syncs, want one, one and none", n)
		}
		closed(t, g)
	}
}

// onSync makes fn answer syncs instead of the disk; nil restores the disk.
func (s *meteredStore) onSync(fn func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sync = fn
}

func (s *meteredStore) Sync(ctx context.Context, ino metadata.Ino) error {
	s.mu.Lock()
	fn := s.sync
	s.mu.Unlock()
	if fn != nil {
		return fn(ctx)
	}
	return s.Store.Sync(ctx, ino)
}
