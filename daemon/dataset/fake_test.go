package dataset

import (
	"context"
	"path/filepath"
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

// fakeNode is the dataset parts of a node, on a fake node.Node and with a source in memory.
type fakeNode struct {
	*nodetest.Node
	*Datasets
	store *chunkstore.Store
	tasks *tasks.Runner
	src   *stageintest.MemFS
	kv    *nodetest.KV
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

// newNodes returns n nodes of a job.
func newNodes(t testing.TB, n int) (all []*fakeNode, r *nodetest.Registry) {
	t.Helper()
	r = nodetest.NewRegistry(nodetest.View(n))
	net := nodetest.NewNetwork()
	for i := range n {
		x := &fakeNode{store: newStore(t), src: stageintest.NewFS(), kv: new(nodetest.KV)}
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

// Self resolves the ambiguity: both embedded types have it.
func (f *fakeNode) Self() metadata.NodeID { return f.Node.Self() }
