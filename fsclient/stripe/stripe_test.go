package stripe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

var ctx = context.Background()

// memStore is one node's objects in memory.
type memStore struct {
	datapath.Store

	mu      sync.Mutex
	objects map[metadata.Ino][]byte // under mu
	errs    []error                 // under mu: for the next reads
	fail    error                   // under mu: for writes
	onWrite func()                  // called before each write
	synced  int                     // under mu
}

func (s *memStore) ReadAt(_ context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.errs) > 0 {
		err := s.errs[0]
		s.errs = s.errs[1:]
		return 0, err
	}
	o := s.objects[ino]
	return copy(p, o[min(off, int64(len(o))):]), nil
}

func (s *memStore) WriteAt(_ context.Context, ino metadata.Ino, p []byte, off int64) error {
	if s.onWrite != nil {
		s.onWrite()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	o := s.objects[ino]
	o = append(o, make([]byte, max(int(off)+len(p)-len(o), 0))...)
	copy(o[off:], p)
	s.objects[ino] = o
	return nil
}

func (s *memStore) Truncate(_ context.Context, ino metadata.Ino, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[ino] = s.objects[ino][:min(size, int64(len(s.objects[ino])))]
	return nil
}

func (s *memStore) Remove(_ context.Context, ino metadata.Ino) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, ino)
	return nil
}

func (s *memStore) Sync(context.Context, metadata.Ino) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced++
	return nil
}

// fakeNodes is three nodes. The lost node has a stand-in.
type fakeNodes struct {
	stores   [3]*memStore
	lost     metadata.NodeID
	standIn  metadata.NodeID
	replicas []metadata.NodeID // of all objects
	excluded func(metadata.NodeID) bool
	filling  []cluster.Copy
}

func (n *fakeNodes) CopiesOf(p cluster.Part) (c cluster.Copies) {
	for _, id := range p.Copies {
		if n.excluded == nil || !n.excluded(id) {
			c.Current = append(c.Current, cluster.Copy{Node: id})
		}
	}
	c.Filling = n.filling
	return c
}

func (n *fakeNodes) Data(id metadata.NodeID) (datapath.Store, error) { return n.stores[id], nil }

func (n *fakeNodes) Where(buf []metadata.NodeID, _ *metadata.Attr, owner metadata.NodeID, _ int64) []metadata.NodeID {
	if owner == n.lost {
		owner = n.standIn
	}
	return append(buf, append([]metadata.NodeID{owner}, n.replicas...)...)
}

func newData(t *testing.T) (*Data, *fakeNodes, *time.Time) {
	t.Helper()
	n := &fakeNodes{lost: 99}
	for i := range n.stores {
		n.stores[i] = &memStore{objects: make(map[metadata.Ino][]byte)}
	}
	l := logrus.New()
	l.SetOutput(io.Discard)
	now := time.Unix(1e9, 0)
	clock := func() time.Time { return now }
	return New(Config{Nodes: n, Sources: sources.New(99, clock, nil), Log: logrus.NewEntry(l), Now: clock}), n, &now
}

const chunk = 64 << 10

var order = []metadata.NodeID{0, 1, 2}

func attr(ino metadata.Ino, size int) *metadata.Attr {
	return &metadata.Attr{Ino: ino, Size: int64(size), Layout: metadata.Layout{ChunkSize: chunk}}
}

func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8*13 + 1)
	}
	return p
}

// TestStripedFile: written data can be read, over all nodes; a cut removes the rest, and missing bytes of a live file
// are zeros.
func TestStripedFile(t *testing.T) {
	d, n, _ := newData(t)
	want := pattern(5*chunk + 100)
	a := attr(5000, len(want))
	if m, nodes, err := d.Write(ctx, a, order, want, 0); m != len(want) || len(nodes) != 3 || err != nil {
		t.Fatalf("Write = %d, %v, %v", m, nodes, err)
	}
	got := make([]byte, len(want)+10)
	if m, err := d.Read(ctx, a, order, got, 0, ReadOpts{}); m != len(want) || err != nil || !bytes.Equal(got[:m], want) {
		t.Errorf("Read = %d, %v, or other bytes", m, err)
	}
	if err := d.Cut(ctx, a, order, chunk/2); err != nil {
		t.Fatal(err)
	}
	if len(n.stores[0].objects[5000]) != chunk/2 || len(n.stores[1].objects)+len(n.stores[2].objects) != 0 {
		t.Error("Cut has left bytes")
	}
	clear(want[chunk/2:])
	if m, err := d.Read(ctx, a, order, got, 0, ReadOpts{}); m != len(want) || err != nil || !bytes.Equal(got[:m], want) {
		t.Errorf("Read of holes = %d, %v, or other bytes", m, err)
	}
	if err := d.Sync(ctx, a, order, order[:2]); err != nil || n.stores[0].synced+n.stores[1].synced != 2 {
		t.Errorf("Sync = %v", err)
	}
}

// TestShortWrite: the result counts the bytes before the first one that failed.
func TestShortWrite(t *testing.T) {
	d, n, _ := newData(t)
	n.stores[1].fail = syscall.ENOSPC
	m, _, err := d.Write(ctx, attr(5000, 0), order, pattern(3*chunk), 0)
	if m != chunk || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Write = %d, %v, want %d, ENOSPC", m, err, chunk)
	}
	for off, want := range map[int64]error{-1: syscall.EINVAL, 1<<63 - 2: syscall.EFBIG} {
		if _, _, err := d.Write(ctx, attr(5000, 0), order, pattern(3), off); !errors.Is(err, want) {
			t.Errorf("Write at %d = %v, want %v", off, err, want)
		}
	}
}

// TestSealedRead: a read of a dataset is retried when that can succeed, and never returns zeros for missing bytes.
func TestSealedRead(t *testing.T) {
	ino := metadata.SealedIno(1, 0, 9)
	want := pattern(100)
	for name, c := range map[string]struct {
		errs []error
		have int
		want error
	}{
		"staged":                  {nil, 100, nil},
		"being staged":            {[]error{syscall.EAGAIN, syscall.EAGAIN, syscall.EAGAIN}, 100, nil},
		"no answer":               {[]error{syscall.EHOSTUNREACH}, 100, nil},
		"bad checksum once":       {[]error{syscall.EBADMSG}, 100, nil},
		"bad checksum every time": {[]error{syscall.EBADMSG, syscall.EBADMSG, syscall.EBADMSG}, 100, syscall.EIO},
		"an error of the disk":    {[]error{syscall.EIO}, 100, syscall.EIO},
		"bytes that stay missing": {nil, 50, syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			d, n, now := newData(t)
			n.stores[0].objects[ino], n.stores[0].errs = want[:c.have], c.errs
			if c.have < len(want) {
				d.cfg.Now = func() time.Time { *now = now.Add(shortPatience / 2); return *now }
			}
			p := make([]byte, 100)
			_, err := d.Read(ctx, attr(ino, 100), order, p, 0, ReadOpts{})
			if !errors.Is(err, c.want) || err == nil && !bytes.Equal(p, want) {
				t.Errorf("Read = %v, want %v, or other bytes", err, c.want)
			}
		})
	}
}

// TestStandIn: the bytes of a lost node are read from its stand-in.
func TestStandIn(t *testing.T) {
	ino := metadata.SealedIno(1, 0, 9)
	d, n, _ := newData(t)
	n.lost, n.standIn = 1, 2
	want := pattern(2 * chunk)
	at := datapath.StandIn(chunk, 3, 1, int64(len(want)), 0)
	n.stores[0].objects[ino] = want[:chunk]
	n.stores[2].objects[ino] = append(make([]byte, at), want[chunk:]...)
	p := make([]byte, len(want))
	if _, err := d.Read(ctx, attr(ino, len(want)), order, p, 0, ReadOpts{}); err != nil || !bytes.Equal(p, want) {
		t.Errorf("Read = %v, or other bytes", err)
	}
}

// TestNoWait: a read that must not wait fails immediately if the node cannot answer in that way.
func TestNoWait(t *testing.T) {
	ino := metadata.SealedIno(1, 0, 9)
	d, _, _ := newData(t)
	if _, err := d.Read(ctx, attr(ino, 10), order, make([]byte, 10), 0, ReadOpts{NoWait: true}); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("Read = %v, want EAGAIN", err)
	}
}

// silentStore never answers before the context ends.
type silentStore struct {
	datapath.Store
	asked int
}

func (s *silentStore) ReadAt(ctx context.Context, _ metadata.Ino, _ []byte, _ int64) (int, error) {
	s.asked++
	<-ctx.Done()
	return 0, syscall.ETIMEDOUT
}

// withSilent makes one node unresponsive.
type withSilent struct {
	*fakeNodes
	silent *silentStore
	id     metadata.NodeID
}

func (n withSilent) Data(id metadata.NodeID) (datapath.Store, error) {
	if id == n.id {
		return n.silent, nil
	}
	return n.fakeNodes.Data(id)
}

// TestReplicas: bytes that one place cannot provide are read from another without a wait, for every kind of failure:
// the owner is lost or silent, or the replica was removed.
func TestReplicas(t *testing.T) {
	ino, want := metadata.SealedIno(1, 0, 7), pattern(9000)
	a := attr(ino, len(want))
	a.Layout.Kind = metadata.Local
	read := func(t *testing.T, d *Data) {
		t.Helper()
		got := make([]byte, len(want))
		for range 20 {
			clear(got)
			if n, err := d.Read(ctx, a, order[:1], got, 0, ReadOpts{}); n != len(want) || err != nil || !bytes.Equal(got, want) {
				t.Fatalf("Read = %d, %v", n, err)
			}
		}
	}
	t.Run("both", func(t *testing.T) {
		d, n, _ := newData(t)
		n.replicas = []metadata.NodeID{1}
		n.stores[0].objects[ino], n.stores[1].objects[ino] = want, want
		read(t, d)
	})
	t.Run("owner fails", func(t *testing.T) {
		d, n, _ := newData(t)
		n.replicas = []metadata.NodeID{1}
		n.stores[1].objects[ino] = want
		for range 100 {
			n.stores[0].errs = append(n.stores[0].errs, syscall.ECONNRESET)
		}
		read(t, d)
		if left := len(n.stores[0].errs); left < 98 {
			t.Errorf("the lost owner was asked %d times while its clock stood still", 100-left)
		}
	})
	t.Run("replica gone", func(t *testing.T) {
		d, n, _ := newData(t)
		n.replicas = []metadata.NodeID{1, 2}
		n.stores[0].objects[ino] = want
		read(t, d)
	})
	t.Run("owner silent", func(t *testing.T) {
		d, n, _ := newData(t)
		n.replicas = []metadata.NodeID{1}
		n.stores[1].objects[ino] = want
		silent := &silentStore{}
		d.cfg.Nodes = withSilent{n, silent, 0}
		read(t, d)
		if silent.asked > 2 {
			t.Errorf("a silent owner was asked %d times", silent.asked)
		}
	})
	t.Run("all fail", func(t *testing.T) {
		d, n, _ := newData(t)
		n.replicas = []metadata.NodeID{1}
		n.stores[0].errs, n.stores[1].errs = []error{syscall.EIO}, []error{syscall.ECONNRESET}
		if _, err := d.Read(ctx, a, order[:1], make([]byte, 10), 0, ReadOpts{}); !errors.Is(err, syscall.EIO) {
			t.Errorf("Read = %v, want the owner's EIO", err)
		}
	})
}
