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
	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

func open(t *testing.T, c *fsclient.Client, ino metadata.Ino) *fsclient.File {
	t.Helper()
	f, err := c.Open(ctx, ino)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func closed(t *testing.T, f *fsclient.File) {
	t.Helper()
	if err := f.Close(ctx); err != nil {
		t.Errorf("Close = %v", err)
	}
}

func write(t *testing.T, f *fsclient.File, p []byte, off int64) {
	t.Helper()
	if n, err := f.WriteAt(ctx, p, off); n != len(p) || err != nil {
		t.Fatalf("WriteAt(%d bytes, %d) = %d, %v", len(p), off, n, err)
	}
}

// TestFileAgainstBytes: random writes, reads and truncates of a striped file match those on a slice of bytes, also when
// another node reads the file.
func TestFileAgainstBytes(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	j := newJob(t, 3)
	c := j.clients[0]
	a := create(t, c, metadata.RootIno, "f", 0)
	f := open(t, c, a.Ino)
	var want []byte
	const most = 6 << 20
	for range 60 {
		off := rng.IntN(most)
		switch rng.IntN(4) {
		case 0, 1:
			p := pattern(rng.IntN(2<<20) + 1)
			write(t, f, p, int64(off))
			if n := off + len(p); n > len(want) {
				want = append(want, make([]byte, n-len(want))...)
			}
			copy(want[off:], p)
		case 2:
			if _, err := c.Truncate(ctx, a.Ino, int64(off)); err != nil {
				t.Fatal(err)
			}
			want = append(want[:min(off, len(want))], make([]byte, max(off-len(want), 0))...)
		case 3:
			if err := f.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if got := read(t, j.clients[1], a.Ino); !bytes.Equal(got, want) {
				t.Fatalf("another node reads %d bytes, want %d, or other bytes", len(got), len(want))
			}
		}
		p := make([]byte, 1<<20)
		n, err := f.Read(ctx, p, int64(off), fsclient.ReadOpts{})
		if w := want[min(off, len(want)):min(off+len(p), len(want))]; err != nil || !bytes.Equal(p[:n], w) {
			t.Fatalf("ReadAt(%d) = %d bytes, %v, want %d, or other bytes", off, n, err, len(w))
		}
	}
	closed(t, f)
}

// TestTruncateRemovesBytes: truncated bytes do not reappear on any node.
func TestTruncateRemovesBytes(t *testing.T) {
	j := newJob(t, 3)
	a := create(t, j.clients[0], metadata.RootIno, "f", 7<<20)
	for _, size := range []int64{5<<20 + 17, 1 << 20, 100, 0} {
		if _, err := j.clients[1].Truncate(ctx, a.Ino, size); err != nil {
			t.Fatal(err)
		}
		if _, err := j.clients[2].Truncate(ctx, a.Ino, 7<<20); err != nil {
			t.Fatal(err)
		}
		want := append(pattern(int(size)), make([]byte, 7<<20-size)...)
		if !bytes.Equal(read(t, j.clients[0], a.Ino), want) {
			t.Errorf("bytes behind %d came back", size)
		}
	}
	if n := j.objects(t); n != 0 {
		t.Errorf("%d objects of a file without bytes", n)
	}
}

// TestUnlinkedOpenFile: an unlinked file keeps its data until the last Close.
func TestUnlinkedOpenFile(t *testing.T) {
	j := newJob(t, 3)
	c := j.clients[2]
	a := create(t, c, metadata.RootIno, "f", 3<<20)
	f, g := open(t, c, a.Ino), open(t, c, a.Ino)
	if _, err := c.Unlink(ctx, metadata.RootIno, "f"); err != nil {
		t.Fatal(err)
	}
	closed(t, f)
	write(t, g, []byte("more"), 3<<20)
	if got, err := c.Getattr(ctx, a.Ino); err != nil || got.Nlink != 0 || got.Size != 3<<20+4 {
		t.Errorf("Getattr without a name = %+v, %v", got, err)
	}
	p := make([]byte, 4<<20)
	if n, err := g.Read(ctx, p, 0, fsclient.ReadOpts{}); err != nil || !bytes.Equal(p[:n], append(pattern(3<<20), "more"...)) {
		t.Errorf("ReadAt without a name = %d, %v", n, err)
	}
	closed(t, g)
	j.gone(t, a.Ino)
	j.noObjects(t)
	if _, err := c.Open(ctx, a.Ino); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("Open of a removed file = %v, want ESTALE", err)
	}
	if s := c.Stats(); s.Open != 0 {
		t.Errorf("Stats = %+v", s)
	}
}

// TestUnlinkedElsewhere: a file unlinked by another node stays usable on the nodes that have it open, and is removed
// after the last close.
func TestUnlinkedElsewhere(t *testing.T) {
	j := newJob(t, 3)
	a := create(t, j.clients[0], metadata.RootIno, "f", 10)
	f, g := open(t, j.clients[1], a.Ino), open(t, j.clients[2], a.Ino)
	write(t, f, pattern(5<<20), 0)
	if _, err := j.clients[0].Unlink(ctx, metadata.RootIno, "f"); err != nil {
		t.Fatal(err)
	}
	if err := f.Flush(ctx); err != nil {
		t.Errorf("Flush = %v", err)
	}
	closed(t, f)
	if got, err := j.clients[2].Getattr(ctx, a.Ino); err != nil || got.Nlink != 0 || got.Size != 5<<20 {
		t.Errorf("Getattr = %+v, %v", got, err)
	}
	p := make([]byte, 6<<20)
	if n, err := g.Read(ctx, p, 0, fsclient.ReadOpts{}); err != nil || !bytes.Equal(p[:n], pattern(5<<20)) {
		t.Errorf("ReadAt without a name = %d, %v", n, err)
	}
	if _, err := j.clients[2].Truncate(ctx, a.Ino, 100); err != nil {
		t.Errorf("Truncate = %v", err)
	}
	closed(t, g)
	j.gone(t, a.Ino)
	j.noObjects(t)
}

// TestClosesAreReported: the home learns of all closes, and a file that is reopened in between stays open.
func TestClosesAreReported(t *testing.T) {
	j := newJob(t, 2)
	c := j.clients[1]
	home := j.meta[0].(*clienttest.Home)
	wantOpen := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " files are open at their home"), func() bool { return home.Files.Stats().Open == n })
	}
	var files []*fsclient.File
	for i := range 100 {
		f, _, err := c.CreateOpen(ctx, metadata.RootIno, fmt.Sprint("f", i), metadata.New{Mode: syscall.S_IFREG | 0o644})
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	wantOpen(100)
	for _, f := range files {
		closed(t, f)
	}
	f := open(t, c, files[7].Ino())
	wantOpen(1)
	if _, err := c.Unlink(ctx, metadata.RootIno, "f7"); err != nil {
		t.Fatal(err)
	}
	for range 100 { // closes are reported late, opens immediately
		g := f
		f = open(t, c, f.Ino())
		closed(t, g)
	}
	closed(t, f)
	j.gone(t, f.Ino())
	wantOpen(0)
	if n := len(c.Recall(metadata.Recall{Home: 0}).Files); n != 0 {
		t.Errorf("Recall has %d files", n)
	}
}

// TestRecall: a client lists its open files for their home, in several replies.
func TestRecall(t *testing.T) {
	j := newJob(t, 2)
	c := j.clients[1]
	const n = 10_000
	all := make(map[metadata.Ino]bool)
	var files []*fsclient.File
	for i := range n {
		f, a, err := c.CreateOpen(ctx, metadata.RootIno, fmt.Sprint("f", i), metadata.New{Mode: syscall.S_IFREG | 0o644})
		if err != nil {
			t.Fatal(err)
		}
		all[a.Ino] = true
		files = append(files, f)
	}
	if r := c.Recall(metadata.Recall{Home: 1}); len(r.Files) != 0 || r.More {
		t.Errorf("Recall of another home has %d files", len(r.Files))
	}
	only := c.Recall(metadata.Recall{Home: 0, Only: []metadata.Ino{files[3].Ino(), 99, files[1].Ino()}})
	if len(only.Files) != 2 || only.Files[0].Ino != files[3].Ino() {
		t.Errorf("Recall of two files = %+v", only)
	}
	q := metadata.Recall{Home: 0}
	for {
		r := c.Recall(q)
		for _, o := range r.Files {
			if !all[o.Ino] || o.Ticket >= r.Floor {
				t.Fatalf("Recall has %+v, floor %d", o, r.Floor)
			}
			delete(all, o.Ino)
			q.After = o.Ino
		}
		if !r.More {
			break
		}
	}
	if len(all) != 0 {
		t.Errorf("Recall lacks %d files", len(all))
	}
	for _, f := range files {
		closed(t, f)
	}
}

// mutedHome answers settlements of appends only after its gate is open.
type mutedHome struct {
	*clienttest.Home
	told atomic.Int64
	gate chan struct{}
}

func (h *mutedHome) Append(ctx context.Context, by metadata.Holder, q metadata.Append) (metadata.Place, error) {
	if q.Len == 0 {
		h.told.Add(1)
		<-h.gate
	}
	return h.Home.Append(ctx, by, q)
}

// TestSettlementsAreIndependent: a home that hangs delays appends to its own files only.
func TestSettlementsAreIndependent(t *testing.T) {
	j := newJob(t, 3)
	muted := &mutedHome{Home: j.homes[1], gate: make(chan struct{})}
	unmute := sync.OnceFunc(func() { close(muted.gate) })
	t.Cleanup(unmute)
	j.meta[1] = muted
	c := j.clients[0]
	var fs []*fsclient.File
	for _, home := range []metadata.NodeID{1, 2} {
		f, _, err := c.CreateOpen(ctx, dirOn(t, c, home), "log", metadata.New{Mode: syscall.S_IFREG | 0o644})
		if err != nil {
			t.Fatal(err)
		}
		fs = append(fs, f)
	}
	must(t, 10)(fs[0].Append(ctx, pattern(10)))
	eventually(t, "the home that hangs is called", func() bool { return muted.told.Load() > 0 })
	must(t, 10)(fs[1].Append(ctx, pattern(10)))
	eventually(t, "the other home learns of the append", func() bool {
		a, err := j.homes[2].Getattr(ctx, fs[1].Ino())
		return err == nil && a.Size == 10
	})
	unmute()
	closed(t, fs[0])
	closed(t, fs[1])
}

// deafHome answers reports of closes only after its gate is open.
type deafHome struct {
	*clienttest.Home
	told atomic.Int64 // calls received
	gate chan struct{}
}

func (h *deafHome) Closed(ctx context.Context, by metadata.Holder, files []metadata.Opened) error {
	h.told.Add(1)
	<-h.gate
	return h.Home.Closed(ctx, by, files)
}

// TestCloseReportsAreIndependent: a home that hangs delays reports to no other home, and is not called again until it
// answers. Afterwards it learns of all closes.
func TestCloseReportsAreIndependent(t *testing.T) {
	j := newJob(t, 3)
	deaf := &deafHome{Home: j.homes[1], gate: make(chan struct{})}
	cure := sync.OnceFunc(func() { close(deaf.gate) })
	t.Cleanup(cure)
	j.meta[1] = deaf
	c := j.clients[0]
	dirs := []metadata.Ino{dirOn(t, c, 1), dirOn(t, c, 2)}
	closeOne := func(home int, name string) metadata.Ino {
		t.Helper()
		f, _, err := c.CreateOpen(ctx, dirs[home-1], name, metadata.New{Mode: syscall.S_IFREG | 0o644})
		if err != nil {
			t.Fatal(err)
		}
		closed(t, f)
		return f.Ino()
	}
	free := func(home int, ino metadata.Ino) func() bool {
		return func() bool { return !j.homes[home].Files.Held(ino) }
	}
	late := []metadata.Ino{closeOne(1, "a")}
	eventually(t, "the home that hangs is called", func() bool { return deaf.told.Load() > 0 })
	for _, name := range []string{"b", "c"} {
		late = append(late, closeOne(1, name))
		eventually(t, "the other home knows of "+name, free(2, closeOne(2, name)))
	}
	if n := deaf.told.Load(); n != 1 {
		t.Errorf("a home that has not answered was called %d times", n)
	}
	cure()
	for _, ino := range late {
		eventually(t, "the home knows", free(1, ino))
	}
}

// TestTimesOfWriter: a time set after a write overrides the time of the write.
func TestTimesOfWriter(t *testing.T) {
	j := newJob(t, 2)
	c := j.clients[0]
	a := create(t, c, metadata.RootIno, "f", 0)
	f := open(t, c, a.Ino)
	write(t, f, pattern(100), 0)
	if _, err := c.Setattr(ctx, a.Ino, metadata.Change{Set: metadata.SetMtime, Mtime: 12345}); err != nil {
		t.Fatal(err)
	}
	closed(t, f)
	if got, err := j.clients[1].Getattr(ctx, a.Ino); err != nil || got.Mtime != 12345 || got.Size != 100 {
		t.Errorf("Getattr = %+v, %v, want mtime 12345 and size 100", got, err)
	}
}

// fullStore has no space beyond a limit.
type fullStore struct {
	datapath.Store
	limit int64
}

func (s fullStore) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if off+int64(len(p)) > s.limit {
		return syscall.ENOSPC
	}
	return s.Store.WriteAt(ctx, ino, p, off)
}

func TestShortWriteOnFullNode(t *testing.T) {
	j := newJob(t, 2)
	a := create(t, j.clients[0], metadata.RootIno, "f", 0)
	order := j.view.Load().Map.Order(a.Ino, a.Layout)
	j.data[order[1]] = fullStore{j.data[order[1]], 1000}
	c := j.client(t, order[0], nil)
	f := open(t, c, a.Ino)
	n, err := f.WriteAt(ctx, pattern(2<<20), 0)
	if n != 1<<20 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("WriteAt = %d, %v, want the first chunk and ENOSPC", n, err)
	}
	closed(t, f)
	if got := read(t, c, a.Ino); !bytes.Equal(got, pattern(1<<20)) {
		t.Errorf("%d bytes after the write, want the first chunk", len(got))
	}
}

func TestNodeDown(t *testing.T) {
	j := newJob(t, 3)
	c := j.clients[0]
	a := create(t, c, metadata.RootIno, "f", 6<<20)
	sp, err := c.Statfs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	v := *j.view.Load()
	v.Map = v.Map.WithState(2, cluster.Down, "")
	j.view.Store(&v)
	if _, err := c.ReadFile(ctx, a, make([]byte, 6<<20), 0); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("ReadFile = %v, want EHOSTDOWN", err)
	}
	if _, err := c.Getattr(ctx, metadata.LiveIno(2, 5000)); !errors.Is(err, syscall.EHOSTDOWN) {
		t.Errorf("Getattr = %v, want EHOSTDOWN", err)
	}
	for i := range 20 { // new files are placed elsewhere
		d, err := c.Mkdir(ctx, metadata.RootIno, "d"+string(rune(97+i)), metadata.New{Mode: 0o755})
		if err != nil {
			t.Fatal(err)
		}
		create(t, c, d.Ino, "f", 4<<20)
	}
	fresh := j.client(t, 0, nil)
	if got, err := fresh.Statfs(ctx); err != nil || got.Capacity >= sp.Capacity {
		t.Errorf("Statfs without a node = %+v, %v, want less than %+v", got, err, sp)
	}
}

// TestNewerLayout: access to a file with a layout of a later epoch waits for the map.
func TestNewerLayout(t *testing.T) {
	j := newJob(t, 2)
	v := *j.view.Load()
	a := metadata.Attr{Ino: metadata.LiveIno(0, 9000), Size: 10, Layout: metadata.Layout{Epoch: v.Map.Epoch + 1}}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := j.clients[0].ReadFile(short, a, make([]byte, 10), 0); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Errorf("ReadFile under an old map = %v, want ETIMEDOUT", err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := j.clients[0].ReadFile(ctx, a, make([]byte, 10), 0)
		done <- err
	}()
	v.Map = v.Map.WithState(1, cluster.Down, "")
	j.view.Store(&v)
	if err := <-done; err != nil {
		t.Errorf("ReadFile under the new map = %v", err)
	}
}
