package mount

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/clienttest"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// gated is a node's data store whose writes wait while there is a gate.
type gated struct {
	datapath.Store
	gate atomic.Pointer[chan struct{}]
}

func (g *gated) WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if gate := g.gate.Load(); gate != nil {
		<-*gate
	}
	return g.Store.WriteAt(ctx, ino, p, off)
}

func (g *gated) Space(context.Context) (datapath.Space, error) {
	return datapath.Space{Capacity: 1 << 40, Free: 1 << 40}, nil
}

// lockNodes returns the mounts of two nodes as the kernel calls them, without a kernel, and the data of both.
func lockNodes(t *testing.T) ([]*fsys, *gated) {
	t.Helper()
	return nodesOf(t, func(h *clienttest.Home) metadata.NodeStore { return h })
}

// nodesOf is like lockNodes, but as wraps the home that the clients use.
func nodesOf(t *testing.T, as func(*clienttest.Home) metadata.NodeStore) ([]*fsys, *gated) {
	t.Helper()
	m := cluster.NewMap(7, []string{"n0", "n1"}).WithState(0, cluster.Up, "n0:1").WithState(1, cluster.Up, "n1:1")
	view := func() cluster.View { return cluster.View{Version: 1, Map: m} }
	data := &gated{Store: clienttest.Data(t)}
	home := clienttest.New(t, clienttest.Config{
		View: view, Data: func(metadata.NodeID) datapath.Store { return data },
	})
	seen := as(home)
	l := logrus.New()
	l.SetOutput(io.Discard)
	var nodes []*fsys
	for id := range metadata.NodeID(2) {
		c, err := fsclient.New(fsclient.Config{
			Self: id, View: view,
			Meta: func(metadata.NodeID) metadata.NodeStore { return seen },
			Data: func(metadata.NodeID) datapath.Store { return data },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		nodes = append(nodes, newFS(Config{Client: c, Log: logrus.NewEntry(l)}, time.Now()))
	}
	return nodes, data
}

// lockedFile is a file that a process has open and locked.
type lockedFile struct {
	*fsys
	ino   uint64
	fh    uint64 // opened for writing
	reads uint64 // another handle
	kind  uint32 // fuse.FUSE_LK_FLOCK or 0
}

const owner = 77 // the process

func (s *fsys) openLocked(t *testing.T, name string, kind uint32) lockedFile {
	t.Helper()
	f, _, err := s.client.CreateOpen(context.Background(), metadata.RootIno, name, metadata.New{
		Mode: syscall.S_IFREG | 0o644, Layout: metadata.Layout{Kind: metadata.Local},
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.client.Open(context.Background(), f.Ino())
	if err != nil {
		t.Fatal(err)
	}
	l := lockedFile{s, uint64(f.Ino()), s.handles.add(&handle{file: f, writer: f.Writer()}), s.handles.add(&handle{file: g}), kind}
	if st := l.setLock(nil, syscall.F_WRLCK); st != fuse.OK {
		t.Fatalf("a free lock: %v", st)
	}
	return l
}

func (l lockedFile) setLock(cancel <-chan struct{}, kind uint32) fuse.Status {
	return l.SetLk(cancel, &fuse.LkIn{
		InHeader: fuse.InHeader{NodeId: l.ino}, Fh: l.fh, Owner: owner, LkFlags: l.kind,
		Lk: fuse.FileLock{End: metadata.MaxLockEnd, Typ: kind},
	})
}

// gather lets the process write twice; the second write stays buffered.
func (l lockedFile) gather(t *testing.T, data *gated) (arrive func()) {
	t.Helper()
	gate := make(chan struct{})
	arrive = sync.OnceFunc(func() { data.gate.Store(nil); close(gate) })
	t.Cleanup(arrive)
	for off := range uint64(2) {
		n, st := l.Write(nil, &fuse.WriteIn{InHeader: fuse.InHeader{NodeId: l.ino}, Fh: l.fh, Offset: off, Size: 1}, []byte("x"))
		if n != 1 || st != fuse.OK {
			t.Fatalf("wrote %d, %v", n, st)
		}
		data.gate.Store(&gate)
	}
	return arrive
}

// other tries to lock the file on another node.
func (l lockedFile) other(c *fsclient.Client) error {
	kind := metadata.PosixLock
	if l.kind != 0 {
		kind = metadata.FlockLock
	}
	return c.Lock(context.Background(), metadata.Ino(l.ino), metadata.Lock{
		Kind: kind, Type: metadata.WriteLock, Owner: 1, End: metadata.MaxLockEnd,
	}, false)
}

// TestLocksOfInterruptedCalls: a lock whose unlock was interrupted by a signal ends after the writes have arrived, not
// earlier.
func TestLocksOfInterruptedCalls(t *testing.T) {
	interrupted := make(chan struct{})
	close(interrupted)
	for name, tt := range map[string]struct {
		kind uint32
		end  func(t *testing.T, l lockedFile)
	}{
		"close": {0, func(t *testing.T, l lockedFile) {
			in := &fuse.FlushIn{InHeader: fuse.InHeader{NodeId: l.ino}, Fh: l.fh, LockOwner: owner}
			if st := l.Flush(interrupted, in); st != fuse.EINTR {
				t.Errorf("close: %v, want EINTR", st)
			}
		}},
		"close of a reader": {0, func(t *testing.T, l lockedFile) {
			in := &fuse.FlushIn{InHeader: fuse.InHeader{NodeId: l.ino}, Fh: l.reads, LockOwner: owner}
			if st := l.Flush(interrupted, in); st != fuse.OK {
				t.Errorf("close: %v, want OK", st)
			}
		}},
		"F_UNLCK": {0, func(t *testing.T, l lockedFile) {
			if st := l.setLock(interrupted, syscall.F_UNLCK); st != fuse.OK {
				t.Errorf("unlock: %v, want OK", st)
			}
		}},
		"LOCK_UN": {fuse.FUSE_LK_FLOCK, func(t *testing.T, l lockedFile) {
			if st := l.setLock(interrupted, syscall.F_UNLCK); st != fuse.OK {
				t.Errorf("unlock: %v, want OK", st)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes, data := lockNodes(t)
			l := nodes[0].openLocked(t, "f", tt.kind)
			c := nodes[1].client
			if _, err := c.Open(context.Background(), metadata.Ino(l.ino)); err != nil {
				t.Fatal(err)
			}
			arrive := l.gather(t, data)
			tt.end(t, l)
			if err := l.other(c); errnoOf(err) != syscall.EAGAIN {
				t.Errorf("before the data has arrived another node gets %v, want EAGAIN", err)
			}
			arrive()
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for end := time.Now().Add(time.Minute); l.other(c) != nil; <-tick.C {
				if time.Now().After(end) {
					t.Fatal("the other node does not get the lock")
				}
			}
			if a, err := c.Getattr(context.Background(), metadata.Ino(l.ino)); err != nil || a.Size != 2 {
				t.Errorf("the next holder sees %d bytes, %v, want 2", a.Size, err)
			}
			l.Release(nil, &fuse.ReleaseIn{InHeader: fuse.InHeader{NodeId: l.ino}, Fh: l.fh})
		})
	}
}
