package fsclient_test

import (
	"context"
	"errors"
	"fmt"
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

var ctx = context.Background()

// job is a job's nodes in this process: their stores, and a client on each.
type job struct {
	view    atomic.Pointer[cluster.View]
	homes   []*clienttest.Home
	meta    []metadata.NodeStore // as the clients see them
	data    []datapath.Store
	clients []*fsclient.Client
}

func newJob(t *testing.T, nodes int) *job {
	t.Helper()
	return startJob(t, nodes, false)
}

// startJob starts a job; with keep, homes keep orphans, as the suite needs.
func startJob(t *testing.T, nodes int, keep bool) *job {
	t.Helper()
	j := &job{}
	hosts := make([]string, nodes)
	for i := range hosts {
		hosts[i] = fmt.Sprint("n", i)
	}
	m := cluster.NewMap(7, hosts)
	for i := range nodes {
		id := metadata.NodeID(i)
		m = m.WithState(id, cluster.Up, hosts[i]+":1")
		j.data = append(j.data, clienttest.Data(t))
		j.homes = append(j.homes, clienttest.New(t, clienttest.Config{
			Self: id, Keep: keep, Peer: func(id metadata.NodeID) metadata.TxPeer { return j.homes[id] },
			View: func() cluster.View { return *j.view.Load() },
			Data: func(id metadata.NodeID) datapath.Store { return j.data[id] },
		}))
		j.meta = append(j.meta, j.homes[i])
	}
	j.view.Store(&cluster.View{Version: 1, Map: m})
	for i := range nodes {
		j.clients = append(j.clients, j.client(t, metadata.NodeID(i), nil))
	}
	return j
}

// client returns another client on node id.
func (j *job) client(t *testing.T, id metadata.NodeID, sealed fsclient.Sealed) *fsclient.Client {
	t.Helper()
	c, err := fsclient.New(fsclient.Config{
		Self: id, Local: j.meta[id], LocalData: j.data[id],
		Meta:   func(id metadata.NodeID) metadata.NodeStore { return j.meta[id] },
		Data:   func(id metadata.NodeID) datapath.Store { return j.data[id] },
		View:   func() cluster.View { return *j.view.Load() },
		Sealed: sealed, UID: 1000, GID: 1000,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s: never", what)
		}
	}
}

// noObjects waits until no node has an object.
func (j *job) noObjects(t *testing.T) {
	t.Helper()
	eventually(t, "no object is left", func() bool { return j.objects(t) == 0 })
}

// gone waits until the home of ino has removed the inode.
func (j *job) gone(t *testing.T, ino metadata.Ino) {
	t.Helper()
	eventually(t, "the inode is gone", func() bool {
		_, err := j.meta[ino.Home()].Getattr(ctx, ino)
		return errors.Is(err, syscall.ENOENT)
	})
}

// objects returns the number of objects on all nodes.
func (j *job) objects(t *testing.T) (n int64) {
	t.Helper()
	for _, d := range j.data {
		sp, err := d.Space(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n += sp.Objects
	}
	return n
}

// create creates a file of size bytes.
func create(t *testing.T, c *fsclient.Client, dir metadata.Ino, name string, size int) metadata.Attr {
	t.Helper()
	a, err := c.Create(ctx, dir, name, metadata.New{Mode: syscall.S_IFREG | 0o644})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WriteFile(ctx, a, pattern(size), 0); err != nil {
		t.Fatal(err)
	}
	if a, err = c.Getattr(ctx, a.Ino); err != nil || a.Size != int64(size) {
		t.Fatalf("Getattr = %+v, %v, want size %d", a, err, size)
	}
	return a
}

func pattern(n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8*13 + i>>16*31 + 1)
	}
	return p
}

func read(t *testing.T, c *fsclient.Client, ino metadata.Ino) []byte {
	t.Helper()
	a, err := c.Getattr(ctx, ino)
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, a.Size+1)
	n, err := c.ReadFile(ctx, a, p, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p[:n]
}

// hookedHome calls a function once, between carrying out a Setattr and answering it.
type hookedHome struct {
	*clienttest.Home
	after atomic.Pointer[func(metadata.Change)]
}

func (h *hookedHome) afterSetattr(fn func(metadata.Change)) { h.after.Store(&fn) }

func (h *hookedHome) Setattr(ctx context.Context, ino metadata.Ino, ch metadata.Change) (metadata.Attr, error) {
	a, err := h.Home.Setattr(ctx, ino, ch)
	if fn := h.after.Swap(nil); fn != nil {
		(*fn)(ch)
	}
	return a, err
}

// hooked returns a job whose first home, which has the root and the new files in it, is hooked; and its clients.
func hooked(t *testing.T) (j *job, h *hookedHome, c0, c1 *fsclient.Client) {
	t.Helper()
	j = newJob(t, 2)
	h = &hookedHome{Home: j.homes[0]}
	j.meta[0] = h
	return j, h, j.client(t, 0, nil), j.client(t, 1, nil)
}
