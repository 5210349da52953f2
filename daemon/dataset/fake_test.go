package dataset

import (
	"bytes"
	"context"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// memKV is a KV in memory.
type memKV struct {
	mu   sync.Mutex
	keys []string
	vals map[string][]byte
}

func (m *memKV) Ingest(_ context.Context, src func(yield func(k, v []byte) error) error) error {
	keys, vals := []string(nil), make(map[string][]byte)
	if err := src(func(k, v []byte) error {
		keys, vals[string(k)] = append(keys, string(k)), bytes.Clone(v)
		return nil
	}); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys, m.vals = keys, vals
	return nil
}

func (m *memKV) Get(k []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.vals[string(k)]
	if !ok {
		return nil, syscall.ENOENT
	}
	return bytes.Clone(v), nil
}

func (m *memKV) Scan(from, to []byte, fn func(k, v []byte) bool) error {
	m.mu.Lock()
	keys := slices.Clone(m.keys)
	m.mu.Unlock()
	at, _ := slices.BinarySearch(keys, string(from))
	for _, k := range keys[at:] {
		v, err := m.Get([]byte(k))
		if to != nil && k >= string(to) || err != nil || !fn([]byte(k), v) {
			return err
		}
	}
	return nil
}

func (m *memKV) Drop() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keys, m.vals = nil, nil
	return nil
}

// fakeNode is the parts of a node, on a fake node.Node and with a source in memory.
type fakeNode struct {
	*nodetest.Node
	*Datasets
	store *chunkstore.Store
	tasks *tasks.Runner
	src   *stageintest.MemFS
	kv    *memKV
}

func newStore(t testing.TB) *chunkstore.Store {
	t.Helper()
	s, err := chunkstore.Open(chunkstore.Config{Dirs: []string{filepath.Join(t.TempDir(), "store")}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newNodes is n nodes of a job.
func newNodes(t testing.TB, n int) (all []*fakeNode, r *nodetest.Registry) {
	t.Helper()
	r = nodetest.NewRegistry(nodetest.View(n))
	net := nodetest.NewNetwork()
	for i := range n {
		x := &fakeNode{store: newStore(t), src: stageintest.NewFS(), kv: new(memKV)}
		t.Cleanup(func() {
			if err := x.Fills.Close(); err != nil {
				t.Error(err)
			}
		})
		x.Node = nodetest.Join(t, metadata.NodeID(i), r, net)
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		x.tasks = tasks.New(x, time.Second)
		x.Datasets = New(Config{
			Ctx: ctx, Node: x, Tasks: x.tasks, Dir: filepath.Join(t.TempDir(), "stage"), Store: x.store, Source: x.src,
			Job:    &job.File{Hosts: nodetest.Hosts(n), Self: metadata.NodeID(i), VerifyReads: true},
			KV:     func(metadata.DatasetID) KV { return x.kv },
			Remote: func(c rpc.Caller) datapath.Store { return remote.NewData(c) }, Patience: time.Second, Retry: time.Millisecond,
		})
		x.Serve(x.tasks.Handlers())
		x.Serve(x.Datasets.Handlers())
		all = append(all, x)
	}
	return all, r
}

// Self is in both embedded types.
func (f *fakeNode) Self() metadata.NodeID { return f.Node.Self() }
