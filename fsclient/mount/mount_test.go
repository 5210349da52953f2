package mount_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

var ctx = context.Background()

// job is three nodes in this process. Nodes 0 and 1 have mounts.
type job struct {
	view    cluster.View
	meta    []*clienttest.Home
	data    []*chunkstore.Store
	sealed  *sealed
	clients []*fsclient.Client
	mounts  []*mount.Mount
	dirs    []string // mount points
	uid     uint32   // of the job's user

	backer   mount.Backer
	backings int            // mount.Config.MaxBackings
	covered  bool           // the dataset has its own connection
	next     mount.Prefetch // prefetch of mount 0; may be nil

	hang atomic.Pointer[chan struct{}] // while set, reads of data wait until it is closed
	hung atomic.Int64                  // reads that waited
	away atomic.Bool                   // this node has no data yet
	// hangWrites does the same for writes; hung counts both.
	hangWrites atomic.Pointer[chan struct{}]

	onSync atomic.Pointer[func() error] // replaces the result of a sync of any node's disk, unless nil
}

// slow is a node's data store whose reads can hang.
type slow struct {
	datapath.Store
	j *job
}

// Open implements datapath.Opener.
func (s slow) Open(ino metadata.Ino) (*os.File, error) {
	return s.Store.(datapath.Opener).Open(ino)
}

func (s slow) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if err := s.j.wait(ctx, &s.j.hang); err != nil {
		return 0, err
	}
	return s.Store.ReadAt(ctx, ino, p, off)
}

// ReadIfPresent implements datapath.PresentReader.
func (s slow) ReadIfPresent(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if s.j.away.Load() {
		return 0, syscall.EAGAIN
	}
	return s.ReadAt(ctx, ino, p, off)
}

func (s slow) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if err := s.j.wait(ctx, &s.j.hangWrites); err != nil {
		return err
	}
	return s.Store.WriteAt(ctx, ino, p, off)
}

func (s slow) Sync(ctx context.Context, ino metadata.Ino) error {
	if fn := s.j.onSync.Load(); fn != nil {
		return (*fn)()
	}
	return s.Store.Sync(ctx, ino)
}

// wait waits while hang is set.
func (j *job) wait(ctx context.Context, hang *atomic.Pointer[chan struct{}]) error {
	if h := hang.Load(); h != nil {
		j.hung.Add(1)
		select {
		case <-*h:
		case <-ctx.Done():
			return syscall.EINTR
		}
	}
	return nil
}

// needFUSE skips if this machine cannot mount.
func needFUSE(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting without fusermount3 needs root")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	_ = f.Close() // the file was not used
}

func newJob(t *testing.T) *job {
	t.Helper()
	return newJobOf(t, 0)
}

func newJobOf(t *testing.T, uid uint32) *job {
	t.Helper()
	return startJob(t, &job{uid: uid, backings: -1})
}

func startJob(t *testing.T, j *job) *job {
	t.Helper()
	needFUSE(t)
	hosts := []string{"n0", "n1", "n2"}
	m := cluster.NewMap(7, hosts)
	for i := range hosts {
		m = m.WithState(metadata.NodeID(i), cluster.Up, hosts[i]+":1")
		j.openNode(t, metadata.NodeID(i))
	}
	j.view = cluster.View{Version: 1, Map: m}
	j.sealed = newSealed(t, j)
	for i := range 2 {
		j.mountNode(t, metadata.NodeID(i))
		if j.covered {
			j.cover(t, i)
		}
	}
	return j
}

func (j *job) openNode(t *testing.T, id metadata.NodeID) {
	t.Helper()
	j.data = append(j.data, clienttest.Data(t))
	j.meta = append(j.meta, clienttest.New(t, clienttest.Config{
		Self: id, UID: j.uid, GID: j.uid,
		Peer: func(id metadata.NodeID) metadata.TxPeer { return j.meta[id] },
		View: func() cluster.View { return j.view },
		Data: func(id metadata.NodeID) datapath.Store { return j.data[id] },
	}))
}

func (j *job) mountNode(t *testing.T, id metadata.NodeID) {
	t.Helper()
	c, err := fsclient.New(fsclient.Config{
		Self: id, Local: j.meta[id], LocalData: slow{j.data[id], j}, UID: j.uid, GID: j.uid,
		Meta:   func(id metadata.NodeID) metadata.NodeStore { return j.meta[id] },
		Data:   func(id metadata.NodeID) datapath.Store { return slow{j.data[id], j} },
		View:   func() cluster.View { return j.view },
		Sealed: j.sealed,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	l := logrus.New()
	l.SetOutput(t.Output())
	m, err := mount.New(mount.Config{
		Client: c, Dir: t.TempDir(), AllowOther: true, UID: j.uid, GID: j.uid, Log: logrus.NewEntry(l),
		Virtual: func(name string) ([]byte, error) { return []byte("this is " + name + "\n"), nil },
		Backer:  j.backer, MaxBackings: j.backings,
	})
	if err != nil {
		t.Fatal(err)
	}
	go m.Serve()
	t.Cleanup(func() {
		if err := m.Unmount(); err != nil {
			t.Error(err)
		}
	})
	if err := m.Ready(); err != nil {
		t.Fatal(err)
	}
	j.clients = append(j.clients, c)
	j.mounts = append(j.mounts, m)
	j.dirs = append(j.dirs, m.Dir())
}

// scratch returns a path below scratch/ on mount i.
func (j *job) scratch(i int, elem ...string) string {
	return filepath.Join(append([]string{j.dirs[i], "scratch"}, elem...)...)
}

// sealed is a dataset whose table is on every node.
type sealed struct {
	set   cluster.Dataset
	table *manifest.Table
}

func (s *sealed) Datasets() []cluster.Dataset { return []cluster.Dataset{s.set} }

func (s *sealed) Table(ds metadata.DatasetID) (metadata.Store, bool) {
	return s.table, ds == s.set.ID
}

const (
	sealedFiles = 40
	sealedBig   = 3<<20 + 5 // size of the striped file
)

func sealedContent(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 1000+i) }

// newSealed stages a small dataset by hand: files that are whole on one node, a striped one, and a link.
func newSealed(t *testing.T, j *job) *sealed {
	t.Helper()
	const ds = 1
	var part, final bytes.Buffer
	w := manifest.NewWriter(&part)
	add := func(r manifest.Record) {
		r.Attr.Mtime, r.Attr.Nlink = 1e18, 1
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range sealedFiles {
		id := metadata.NodeID(i % len(j.data))
		a := metadata.Attr{Ino: metadata.SealedIno(ds, 0, uint32(i)), Mode: syscall.S_IFREG | 0o444, Size: int64(len(sealedContent(i)))}
		a.Layout = metadata.Layout{Kind: metadata.Local, Node: id}
		if err := j.data[id].WriteAt(ctx, a.Ino, sealedContent(i), 0); err != nil {
			t.Fatal(err)
		}
		add(manifest.Record{Path: fmt.Sprintf("train/%03d", i), Attr: a})
	}
	big := metadata.Attr{Ino: metadata.SealedIno(ds, 0, 999), Mode: syscall.S_IFREG | 0o444, Size: sealedBig}
	big.Layout = metadata.Layout{ChunkSize: 1 << 19, Epoch: j.view.Map.Epoch}
	for _, s := range datapath.Spans(1<<19, j.view.Map.Order(big.Ino, big.Layout), 0, sealedBig) {
		if err := j.data[s.Node].WriteAt(ctx, big.Ino, pattern(sealedBig)[s.Pos:s.Pos+s.Len], s.Off); err != nil {
			t.Fatal(err)
		}
	}
	add(manifest.Record{Path: "big", Attr: big})
	add(manifest.Record{Path: "link", Target: "train/000", Attr: metadata.Attr{Ino: metadata.SealedIno(ds, 0, 1000), Mode: syscall.S_IFLNK | 0o777}})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	root := metadata.Attr{Mode: syscall.S_IFDIR | 0o755}
	if _, err := manifest.Build(manifest.BuildConfig{Dataset: ds, Root: root, Scratch: &manifest.Scratch{Dir: t.TempDir()}}, []*manifest.Reader{manifest.NewReader(&part)}, &final); err != nil {
		t.Fatal(err)
	}
	kv := j.meta[0].Table(ds)
	if _, err := manifest.Ingest(ctx, kv, manifest.NewReader(&final), &manifest.Scratch{Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	tab, err := manifest.Open(kv, ds)
	if err != nil {
		t.Fatal(err)
	}
	return &sealed{set: cluster.Dataset{ID: ds, Name: "set", Phase: cluster.Sealed, Files: sealedFiles + 1, Dirs: 2, Bytes: 100 << 20}, table: tab}
}

// pattern returns n bytes in which no two pages are equal.
func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8*13 + i>>16*31 + 1)
	}
	return p
}

// TestReadAhead: a sequential reader has several requests in flight before the first is answered, and more the longer
// it reads; a random reader reads only what it asks for.
func TestReadAhead(t *testing.T) {
	j := newJob(t)
	var st unix.Stat_t
	check(t, unix.Stat(j.dirs[0], &st))
	b, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev)))
	check(t, err)
	if got := strings.TrimSpace(string(b)); got != "4096" {
		t.Errorf("read_ahead_kb = %s, want 4096", got)
	}
	const size, piece = 16 << 20, 1 << 20
	want := pattern(size)
	for _, name := range []string{"sequence", "random"} {
		check(t, os.WriteFile(j.scratch(0, name), want, 0o644))
	}
	j.readInSequence(t, want, piece)
	j.readAtRandom(t, want)
}

// readInSequence lets mount 1 read a file whose first pieces hang for a while.
func (j *job) readInSequence(t *testing.T, want []byte, piece int) {
	t.Helper()
	f, err := os.Open(j.scratch(1, "sequence"))
	check(t, err)
	defer f.Close()
	first, second := make(chan struct{}), make(chan struct{})
	goOn := []func(){sync.OnceFunc(func() { close(first) }), sync.OnceFunc(func() { close(second) })}
	for _, on := range goOn {
		t.Cleanup(on) // before the unmount
	}
	j.hang.Store(&first)
	read := make(chan struct{})
	go func() {
		defer close(read)
		p := make([]byte, piece)
		for off := 0; off < len(want); off += piece {
			if _, err := f.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, want[off:][:piece]) {
				t.Errorf("read at %d: %v, or other bytes", off, err)
			}
		}
	}()
	j.awaitHung(t, 4)
	j.hang.Store(&second)
	had := j.hung.Load()
	goOn[0]()
	j.awaitHung(t, had+8)
	j.hang.Store(nil)
	goOn[1]()
	<-read
}

// awaitHung waits until n requests hang.
func (j *job) awaitHung(t *testing.T, n int64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); j.hung.Load() < n; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%d requests have hung, want %d", j.hung.Load(), n)
		}
	}
}

// readAtRandom lets mount 1 read non-adjacent pages of a file.
func (j *job) readAtRandom(t *testing.T, want []byte) {
	t.Helper()
	f, err := os.Open(j.scratch(1, "random"))
	check(t, err)
	defer f.Close()
	const page, reads = 4096, 100
	p := make([]byte, page)
	before := j.clients[1].Stats()
	for _, i := range rand.New(rand.NewPCG(1, 2)).Perm(len(want)/page/4 - 1)[:reads] {
		off := (i + 1) * 4 * page
		if _, err := f.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, want[off:][:page]) {
			t.Errorf("read at %d: %v, or other bytes", off, err)
		}
	}
	after := j.clients[1].Stats()
	if got := after.ReadLocal + after.ReadRemote - before.ReadLocal - before.ReadRemote; got != reads*page {
		t.Errorf("%d bytes were fetched for %d reads of %d", got, reads, page)
	}
}
