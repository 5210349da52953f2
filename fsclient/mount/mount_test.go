package mount_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

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

// job is three nodes in this process. Nodes 0 and 1 are mounted.
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
	backings int  // mount.Config.MaxBackings
	covered  bool // the dataset has a connection of its own

	hang atomic.Pointer[chan struct{}] // while set, reads of data wait until it is closed
	hung atomic.Int64                  // reads that did
	// hangWrites is hang for writes; both of them count as hung.
	hangWrites atomic.Pointer[chan struct{}]
}

// slow is a node's data, whose reads can be made to hang.
type slow struct {
	datapath.Store
	j *job
}

// Open is datapath.Opener.
func (s slow) Open(ino metadata.Ino) (*os.File, error) {
	return s.Store.(datapath.Opener).Open(ino)
}

func (s slow) ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if err := s.j.wait(ctx, &s.j.hang); err != nil {
		return 0, err
	}
	return s.Store.ReadAt(ctx, ino, p, off)
}

func (s slow) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if err := s.j.wait(ctx, &s.j.hangWrites); err != nil {
		return err
	}
	return s.Store.WriteAt(ctx, ino, p, off)
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

// needFUSE skips where the machine cannot mount.
func needFUSE(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting without fusermount3 needs root")
	}
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no FUSE here: %v", err)
	}
	_ = f.Close() // nothing was done with it
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
	d, err := chunkstore.Open(chunkstore.Config{Dirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	j.data = append(j.data, d)
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

// scratch is a path in the live realm of mount i.
func (j *job) scratch(i int, elem ...string) string {
	return filepath.Join(append([]string{j.dirs[i], "scratch"}, elem...)...)
}

// sealed is one dataset whose table is on every node.
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
	sealedBig   = 3<<20 + 5 // bytes of the striped file
)

func sealedContent(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 1000+i) }

// newSealed stages a small dataset by hand: files that are whole on one node,
// a striped one, and a link.
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

// pattern is n bytes of which no two pages are alike.
func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8*13 + i>>16*31 + 1)
	}
	return p
}

// TestReadAhead: who reads in sequence is some requests ahead.
func TestReadAhead(t *testing.T) {
	j := newJob(t)
	var st unix.Stat_t
	check(t, unix.Stat(j.dirs[0], &st))
	b, err := os.ReadFile(fmt.Sprintf("/sys/class/bdi/%d:%d/read_ahead_kb", unix.Major(st.Dev), unix.Minor(st.Dev)))
	check(t, err)
	if got := strings.TrimSpace(string(b)); got != "4096" {
		t.Errorf("read_ahead_kb = %s, want 4096", got)
	}
}
