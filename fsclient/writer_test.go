package fsclient_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/metadata"
)

// meteredStore counts the writes to a node, and can delay or fail them, or run short of space.
type meteredStore struct {
	datapath.Store
	writes atomic.Int64
	full   atomic.Bool

	mu   sync.Mutex
	fail error                       // under mu
	sync func(context.Context) error // under mu
	gate chan struct{}               // under mu: writes wait until it is closed; nil means open
}

func (s *meteredStore) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	s.writes.Add(1)
	s.mu.Lock()
	fail, gate := s.fail, s.gate
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if fail != nil {
		return fail
	}
	return s.Store.WriteAt(ctx, ino, p, off)
}

func (s *meteredStore) Space(ctx context.Context) (datapath.Space, error) {
	sp, err := s.Store.Space(ctx)
	sp.Free = 1 << 40
	if s.full.Load() {
		sp.Free = 100 << 20
	}
	return sp, err
}

func (s *meteredStore) set(fail error, gate chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail, s.gate = fail, gate
}

// metered returns a job with metered stores, and clients that use them.
func metered(t *testing.T, nodes int) (*job, []*meteredStore, []*fsclient.Client) {
	t.Helper()
	j := newJob(t, nodes)
	var ms []*meteredStore
	var cs []*fsclient.Client
	for i, d := range j.data {
		m := &meteredStore{Store: d}
		j.data[i], ms = m, append(ms, m)
	}
	for i := range j.data {
		cs = append(cs, j.client(t, metadata.NodeID(i), nil))
	}
	return j, ms, cs
}

// must returns a function that checks that a write of want bytes is complete.
func must(t *testing.T, want int) func(n int, err error) {
	t.Helper()
	return func(n int, err error) {
		t.Helper()
		if n != want || err != nil {
			t.Fatalf("wrote %d, %v, want %d", n, err, want)
		}
	}
}

// buffered lets w write 1,000 bytes at the start of its file, of which the last 600 are buffered, and returns them.
func buffered(t *testing.T, w *fsclient.Writer) []byte {
	t.Helper()
	p := pattern(1000)
	must(t, 400)(w.WriteAt(ctx, p[:400], 0))
	must(t, 600)(w.WriteAt(ctx, p[400:], 400))
	return p
}

// onNode creates a file whose data is on node id.
func onNode(t *testing.T, c *fsclient.Client, name string, id metadata.NodeID) *fsclient.File {
	t.Helper()
	f, _, err := c.CreateOpen(ctx, metadata.RootIno, name, metadata.New{
		Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Local, Node: id},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// object returns the bytes of a file on node id.
func (j *job) object(t *testing.T, id metadata.NodeID, ino metadata.Ino, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	m, err := j.data[id].ReadAt(ctx, ino, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p[:m]
}

// TestSmallWritesAreBuffered: 10,000 small sequential writes cause few calls to the owners.
func TestSmallWritesAreBuffered(t *testing.T) {
	_, ms, cs := metered(t, 3)
	a := create(t, cs[0], metadata.RootIno, "f", 0)
	f := open(t, cs[0], a.Ino)
	w := f.Writer()
	const n, size = 10_000, 4096
	want := pattern(n * size)
	for k := range n {
		must(t, size)(w.WriteAt(ctx, want[k*size:][:size], int64(k*size)))
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	var writes int64
	for _, m := range ms {
		writes += m.writes.Load()
	}
	// One write for each buffer; on a slow machine some buffers are sent early because of their age.
	if least := int64(n*size) / (512 << 10); writes < least || writes > n/10 {
		t.Errorf("%d calls for %d writes, want about %d", writes, n, least)
	}
	if got := read(t, cs[1], a.Ino); !bytes.Equal(got, want) {
		t.Error("another node reads other bytes")
	}
	if s := cs[0].Stats(); s.Buffers != 0 || s.Buffered < n*size*9/10 {
		t.Errorf("%+v", s)
	}
}

// TestAppendsAreBuffered: appends of a single node cause few calls to the owners and to the home.
func TestAppendsAreBuffered(t *testing.T) {
	j, ms, cs := metered(t, 2)
	f := onNode(t, cs[1], "log", 1)
	ino := f.Ino()
	closed(t, f)
	eventually(t, "the home knows of the close", func() bool { return !j.homes[ino.Home()].Files.Held(ino) })
	w := open(t, cs[0], ino).Writer()
	const n = 10_000
	var want []byte
	before := cs[0].Stats()
	for k := range n {
		p := fmt.Appendf(nil, "%099d\n", k)
		must(t, len(p))(w.Append(ctx, p))
		want = append(want, p...)
	}
	if err := w.Close(ctx); err != nil {
		t.Fatal(err)
	}
	after := cs[0].Stats()
	if calls := after.MetaRemote - before.MetaRemote + ms[1].writes.Load(); calls > n/10 {
		t.Errorf("%d calls for %d appends", calls, n)
	}
	if got := read(t, cs[1], ino); !bytes.Equal(got, want) {
		t.Errorf("%d bytes, want %d, or other ones", len(got), len(want))
	}
}

// TestAppendsOfTwoNodes: if another node has the file open, each append has arrived when it returns, and none is torn.
func TestAppendsOfTwoNodes(t *testing.T) {
	_, _, cs := metered(t, 2)
	f := onNode(t, cs[0], "log", 1)
	ws := []*fsclient.Writer{f.Writer(), open(t, cs[1], f.Ino()).Writer()}
	var want []byte
	for k := range 100 {
		p := fmt.Appendf(nil, "%d of %d\n", k, k%2)
		must(t, len(p))(ws[k%2].Append(ctx, p))
		want = append(want, p...)
	}
	for _, c := range cs {
		if s := c.Stats(); s.Buffered != 0 {
			t.Errorf("%d bytes were buffered", s.Buffered)
		}
	}
	for _, w := range ws {
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	}
	if got := read(t, cs[1], f.Ino()); !bytes.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestWhatDrainsBuffers: every operation that depends on buffered writes drains them first.
func TestWhatDrainsBuffers(t *testing.T) {
	fail := func(_ any, err error) error { return err }
	for name, trigger := range map[string]func(c *fsclient.Client, f *fsclient.File, w *fsclient.Writer) error{
		"flush": func(_ *fsclient.Client, _ *fsclient.File, w *fsclient.Writer) error { return w.Flush(ctx) },
		"sync":  func(_ *fsclient.Client, _ *fsclient.File, w *fsclient.Writer) error { return w.Sync(ctx) },
		"flush of another": func(_ *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error {
			return f.Writer().Flush(ctx)
		},
		"read": func(_ *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error {
			return fail(f.Read(ctx, make([]byte, 10), 500, fsclient.ReadOpts{}))
		},
		"getattr": func(c *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error {
			return fail(c.Getattr(ctx, f.Ino()))
		},
		"lookup": func(c *fsclient.Client, _ *fsclient.File, _ *fsclient.Writer) error {
			return fail(c.Lookup(ctx, metadata.RootIno, "f"))
		},
		"chmod": func(c *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error {
			return fail(c.Setattr(ctx, f.Ino(), metadata.Change{Set: metadata.SetMode, Mode: 0o600}))
		},
		"truncate": func(c *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error {
			return fail(c.Truncate(ctx, f.Ino(), 5000))
		},
		"allocate": func(_ *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error { return f.Allocate(ctx, 0, 5000) },
		"punch":    func(_ *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error { return f.Punch(ctx, 4096, 4096) },
		"seek":     func(_ *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error { return fail(f.NextHole(ctx, 0)) },
		"write elsewhere": func(_ *fsclient.Client, _ *fsclient.File, w *fsclient.Writer) error {
			return fail(w.WriteAt(ctx, []byte("x"), 9000))
		},
		"write through": func(_ *fsclient.Client, _ *fsclient.File, w *fsclient.Writer) error {
			return fail(w.WriteThrough(ctx, []byte("x"), 1000))
		},
		"append": func(_ *fsclient.Client, _ *fsclient.File, w *fsclient.Writer) error {
			return fail(w.Append(ctx, []byte("x")))
		},
		"unlock of another file": func(c *fsclient.Client, f *fsclient.File, _ *fsclient.Writer) error {
			g, _, err := c.CreateOpen(ctx, metadata.RootIno, "lock", metadata.New{Mode: syscall.S_IFREG | 0o644})
			if err != nil {
				return err
			}
			l := metadata.Lock{Kind: metadata.FlockLock, Type: metadata.WriteLock, Owner: 7, End: metadata.MaxLockEnd}
			if err := c.Lock(ctx, g.Ino(), l, false); err != nil {
				return err
			}
			return c.UnlockAll(ctx, g.Ino(), metadata.FlockLock, 7)
		},
		"settle": func(c *fsclient.Client, _ *fsclient.File, _ *fsclient.Writer) error { return c.Drain(ctx) },
		"close of the client": func(c *fsclient.Client, _ *fsclient.File, _ *fsclient.Writer) error {
			c.Close()
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j, _, cs := metered(t, 2)
			f := onNode(t, cs[0], "f", 1)
			w := f.Writer()
			want := buffered(t, w)
			if err := trigger(cs[0], f, w); err != nil {
				t.Fatal(err)
			}
			if got := j.object(t, 1, f.Ino(), 1000); !bytes.Equal(got, want) {
				t.Errorf("%d bytes have arrived, or other ones", len(got))
			}
		})
	}
}

// TestOldBuffersAreFlushed: buffered writes are sent and published to the home even if no process writes any more.
func TestOldBuffersAreFlushed(t *testing.T) {
	_, _, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 0)
	want := buffered(t, f.Writer())
	eventually(t, "another node sees it", func() bool { return bytes.Equal(read(t, cs[1], f.Ino()), want) })
	closed(t, f)
}

// TestOldBuffersAreIndependent: a node that hangs delays only the buffers for it.
func TestOldBuffersAreIndependent(t *testing.T) {
	j, ms, cs := metered(t, 2)
	stuck, f := onNode(t, cs[0], "stuck", 1), onNode(t, cs[0], "f", 0)
	v := stuck.Writer()
	must(t, 10)(v.WriteAt(ctx, pattern(10), 0))
	before := ms[1].writes.Load()
	gate := make(chan struct{})
	open := sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	ms[1].set(nil, gate)
	must(t, 10)(v.WriteAt(ctx, pattern(10), 10))
	eventually(t, "the old buffer is sent", func() bool { return ms[1].writes.Load() > before })
	w := f.Writer()
	want := buffered(t, w)
	eventually(t, "the other buffer has arrived", func() bool { return bytes.Equal(j.object(t, 0, f.Ino(), 1000), want) })
	open()
	if err := errors.Join(v.Close(ctx), w.Close(ctx)); err != nil {
		t.Error(err)
	}
}

// TestBufferOfUnlinkedFile: an unlinked file can be written like any other, and leaves no objects.
func TestBufferOfUnlinkedFile(t *testing.T) {
	j, _, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	w := f.Writer()
	must(t, 10)(w.WriteAt(ctx, pattern(10), 0))
	if _, err := cs[0].Unlink(ctx, metadata.RootIno, "f"); err != nil {
		t.Fatal(err)
	}
	must(t, 10)(w.WriteAt(ctx, pattern(10), 10))
	p := make([]byte, 100)
	if n, err := f.Read(ctx, p, 0, fsclient.ReadOpts{}); n != 20 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	must(t, 10)(w.WriteAt(ctx, pattern(10), 20))
	if err := w.Close(ctx); err != nil {
		t.Error(err)
	}
	j.gone(t, f.Ino())
	j.noObjects(t)
}

// TestWritesOverlap: a sequential writer, of small or large writes, waits for a node only at the limit of batches in
// flight.
func TestWritesOverlap(t *testing.T) {
	for _, size := range []int{64 << 10, 512 << 10, 1 << 20} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			_, ms, cs := metered(t, 2)
			f := onNode(t, cs[0], "f", 1)
			w := f.Writer()
			const batch, most = 512 << 10, 4
			want := pattern(8 * batch)
			put := func(from, to int) {
				for off := from; off < to; off += size {
					must(t, size)(w.WriteAt(ctx, want[off:][:size], int64(off)))
				}
			}
			put(0, size)
			gate := make(chan struct{})
			ms[1].set(nil, gate)
			before := ms[1].writes.Load()
			full := size/batch*batch + most*batch
			put(size, full)
			canceled, cancel := context.WithCancel(ctx)
			cancel()
			if n, err := w.WriteAt(canceled, want[full:][:size], int64(full)); n != 0 || !errors.Is(err, syscall.EINTR) {
				t.Errorf("with %d batches in flight: %d, %v, want EINTR", most, n, err)
			}
			eventually(t, "all batches are in flight", func() bool { return ms[1].writes.Load() == before+most })
			if err := w.Flush(canceled); !errors.Is(err, syscall.EINTR) {
				t.Errorf("an interrupted flush: %v, want EINTR", err)
			}
			close(gate)
			put(full, len(want))
			if err := w.Close(ctx); err != nil {
				t.Error(err)
			}
			if got := read(t, cs[1], f.Ino()); !bytes.Equal(got, want) {
				t.Error("other bytes")
			}
		})
	}
}

// TestLaterWriteWins: a write over bytes in flight waits for them, also if it continues a write made in between.
func TestLaterWriteWins(t *testing.T) {
	_, ms, cs := metered(t, 2)
	f := onNode(t, cs[0], "f", 1)
	a, b := f.Writer(), f.Writer()
	const size = 1 << 10
	must(t, size)(a.WriteAt(ctx, make([]byte, size), 0))
	gate := make(chan struct{})
	ms[1].set(nil, gate)
	for off := size; off < 512<<10; off += size { // only one batch is in flight
		must(t, size)(a.WriteAt(ctx, make([]byte, size), int64(off)))
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if n, err := b.WriteAt(canceled, pattern(200<<10), 0); n != 0 || !errors.Is(err, syscall.EINTR) {
		t.Errorf("a large write over it: %d, %v, want EINTR", n, err)
	}
	if n, err := a.WriteAt(canceled, pattern(size), 200<<10); n != 0 || !errors.Is(err, syscall.EINTR) {
		t.Errorf("a small write behind that, over it: %d, %v, want EINTR", n, err)
	}
	close(gate)
	must(t, size)(a.WriteAt(ctx, pattern(size), 200<<10))
	if err := errors.Join(a.Close(ctx), b.Flush(ctx)); err != nil {
		t.Error(err)
	}
	if got := read(t, cs[1], f.Ino())[200<<10:][:size]; !bytes.Equal(got, pattern(size)) {
		t.Error("an earlier write has won")
	}
}

// TestWritersAgainstBytes: random operations of several writers on a node match those on a slice of bytes, also when
// another node reads the file.
func TestWritersAgainstBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	_, _, cs := metered(t, 3)
	a, err := cs[0].Create(ctx, metadata.RootIno, "f", metadata.New{Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{ChunkSize: 64 << 10}})
	if err != nil {
		t.Fatal(err)
	}
	f := open(t, cs[0], a.Ino)
	ws := []*fsclient.Writer{f.Writer(), f.Writer()}
	var want []byte
	next := 0
	put := func(p []byte, off int) {
		want = append(want, make([]byte, max(off+len(p)-len(want), 0))...)
		copy(want[off:], p)
	}
	bytesOf := pattern(1 << 20)
	for step := range 600 {
		w := ws[rng.IntN(2)]
		size := rng.IntN(3000) + 1
		if rng.IntN(20) == 0 {
			size = rng.IntN(700<<10) + 1
		}
		p := bytesOf[rng.IntN(len(bytesOf)-size):][:size]
		switch k := rng.IntN(100); {
		case k < 60:
			must(t, len(p))(w.WriteAt(ctx, p, int64(next)))
			put(p, next)
			next += len(p)
		case k < 75:
			must(t, len(p))(w.Append(ctx, p))
			put(p, len(want))
		case k < 80:
			next = rng.IntN(4 << 20)
		case k < 83:
			must(t, len(p))(w.WriteThrough(ctx, p, int64(next)))
			put(p, next)
			next += len(p)
		case k < 86:
			size := rng.IntN(len(want) + 1000)
			if _, err := cs[0].Truncate(ctx, a.Ino, int64(size)); err != nil {
				t.Fatal(err)
			}
			want = append(want[:min(size, len(want))], make([]byte, max(size-len(want), 0))...)
		case k < 92:
			off := rng.IntN(len(want) + 1)
			q := make([]byte, 100<<10)
			n, err := f.Read(ctx, q, int64(off), fsclient.ReadOpts{})
			if err != nil || !bytes.Equal(q[:n], want[off:min(len(want), off+len(q))]) {
				t.Fatalf("step %d: %d bytes at %d of %d, %v, or other ones", step, n, off, len(want), err)
			}
		case k < 97:
			if got, err := cs[0].Getattr(ctx, a.Ino); err != nil || got.Size != int64(len(want)) {
				t.Fatalf("step %d: %d bytes, %v, want %d", step, got.Size, err, len(want))
			}
		default:
			if err := w.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if got := read(t, cs[1], a.Ino); !bytes.Equal(got, want) {
				t.Fatalf("step %d: another node reads %d bytes, want %d, or other ones", step, len(got), len(want))
			}
		}
	}
	for _, w := range ws {
		if err := w.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if got := read(t, cs[2], a.Ino); !bytes.Equal(got, want) {
		t.Error("other bytes at the end")
	}
	closed(t, f)
}
