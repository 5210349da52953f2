package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// deadline bounds each wait; it is not a performance limit.
const deadline = time.Minute

// fakeNode is a node of a fakeJob: the real parts, on a fake node.Node.
type fakeNode struct {
	*nodetest.Node
	dir    string
	store  *chunkstore.Store
	tasks  *tasks.Runner
	data   *dataset.Datasets
	stager *Stager
}

// fakeJob is a set of nodes that stage in datasets from a filesystem in memory, with a registry that agrees
// immediately.
type fakeJob struct {
	t        *testing.T
	registry *nodetest.Registry
	net      *nodetest.Network
	src      *stageintest.MemFS
	nodes    []*fakeNode
}

// startJob starts n nodes and a goroutine that acts as the leader.
func startJob(t *testing.T, n int) *fakeJob {
	t.Helper()
	f := newJob(t, n)
	for _, x := range f.nodes {
		x.Spawn(x.data.Follower.Run)
	}
	f.nodes[n-1].Spawn(f.lead)
	return f
}

// newJob is like startJob, but its nodes do not follow the registry.
func newJob(t *testing.T, n int) *fakeJob {
	t.Helper()
	f := &fakeJob{t: t, registry: nodetest.NewRegistry(nodetest.View(n)), net: nodetest.NewNetwork(), src: stageintest.NewFS()}
	for i := range n {
		f.nodes = append(f.nodes, f.newNode(metadata.NodeID(i), n))
	}
	return f
}

func (f *fakeJob) newNode(id metadata.NodeID, n int) *fakeNode {
	t := f.t
	x := &fakeNode{dir: t.TempDir()}
	var err error
	if x.store, err = chunkstore.Open(chunkstore.Config{Dirs: []string{filepath.Join(x.dir, "store")}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(x.data.Fills.Close(), x.store.Close()); err != nil {
			t.Error(err)
		}
	})
	x.Node = nodetest.Join(t, id, f.registry, f.net)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	j := &job.File{ID: "7", Self: id, Hosts: nodetest.Hosts(n), Seed: 1, VerifyReads: true}
	x.tasks = tasks.New(x, deadline)
	kv := make(map[metadata.DatasetID]*nodetest.KV)
	var mu sync.Mutex
	x.data = dataset.New(dataset.Config{
		Ctx: ctx, Node: x, Tasks: x.tasks, Job: j, Dir: filepath.Join(x.dir, "stage"), Store: x.store, Source: f.src,
		KV: func(id metadata.DatasetID) dataset.KV {
			mu.Lock()
			defer mu.Unlock()
			if kv[id] == nil {
				kv[id] = new(nodetest.KV)
			}
			return kv[id]
		},
		Remote: func(c rpc.Caller) datapath.Store { return remote.NewData(c) }, Patience: deadline, Retry: time.Millisecond,
	})
	x.stager = New(Config{
		Ctx: ctx, Node: x, Tasks: x.tasks, Job: j, Data: x.data, Source: f.src, Report: time.Millisecond, Patience: deadline,
	})
	for _, h := range []node.Handlers{x.tasks.Handlers(), x.data.Handlers(), x.stager.Handlers()} {
		x.Serve(h)
	}
	x.Serve(node.Handlers{wire.OpSpace: func(ctx context.Context, _ *rpc.Request, resp *rpc.Response) error {
		s, err := x.store.Space(ctx)
		resp.Body = &wire.SpaceResp{Space: s}
		return err
	}, wire.OpRemoveObject: node.Handle(func(ctx context.Context, q *wire.InoReq) (node.Appender, error) {
		return nil, x.store.Remove(ctx, q.Ino)
	})})
	return x
}

// lead does what the leader of a job does for datasets.
func (f *fakeJob) lead(ctx context.Context) {
	for node.Pause(ctx, time.Millisecond) == nil {
		v := f.registry.View()
		for _, ds := range v.Datasets {
			if was := ds.Phase; f.next(v, &ds) {
				if _, err := f.registry.Propose(ctx, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: ds}); err != nil && ctx.Err() == nil {
					f.t.Errorf("from %v to %v: %v", was, ds.Phase, err)
				}
			}
		}
	}
}

// next moves ds to its next phase if that is due.
func (f *fakeJob) next(v cluster.View, ds *cluster.Dataset) bool {
	if c, _ := v.Map.Node(ds.Coordinator); ds.Phase == cluster.Staging && c.State == cluster.Down {
		ds.Coordinator, ds.Attempt = v.Map.Up()[0], ds.Attempt+1
		return true
	}
	if ds.Phase != cluster.Publishing && ds.Phase != cluster.Filling {
		return false
	}
	for _, x := range f.nodes {
		if n, _ := v.Map.Node(x.Self()); !node.Serving(n) {
			continue
		}
		have, trouble := x.data.Tables.Report()
		r := x.data.Fills.Report()[ds.ID]
		switch {
		case ds.Phase == cluster.Publishing && trouble[ds.ID] != "", ds.Phase == cluster.Filling && r.Error != "":
			ds.Phase, ds.Error = cluster.Failed, trouble[ds.ID]+r.Error
			return true
		case ds.Phase == cluster.Publishing && have[ds.ID] != ds.Digest:
			return false
		case ds.Phase == cluster.Filling && r.Complete < v.Map.Epoch:
			return false
		}
	}
	if ds.Phase == cluster.Publishing && ds.Fill {
		ds.Phase = cluster.Filling
	} else {
		ds.Phase = cluster.Sealed
	}
	return true
}

// dataset returns the newest dataset in the registry.
func (f *fakeJob) dataset() cluster.Dataset {
	all := f.registry.View().Datasets
	if len(all) == 0 {
		return cluster.Dataset{}
	}
	return all[len(all)-1]
}

func (f *fakeJob) eventually(what string, ok func() bool) {
	f.t.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			f.t.Fatalf("%s: not within %v; the dataset is %+v", what, deadline, f.dataset())
		}
	}
}

// sealed waits until a dataset is ready.
func (f *fakeJob) sealed() cluster.Dataset {
	f.t.Helper()
	f.eventually("the dataset is ready", func() bool {
		p := f.dataset().Phase
		return p == cluster.Sealed || p == cluster.Failed
	})
	ds := f.dataset()
	if ds.Phase != cluster.Sealed {
		f.t.Fatalf("dataset %+v", ds)
	}
	return ds
}

// tree adds n files of size bytes to the source, below /src.
func (f *fakeJob) tree(n, size int) map[string][]byte {
	const dir, file = 0o040755, 0o100644
	all := make(map[string][]byte)
	f.src.Add("/src", dir, nil)
	for i := range n {
		d := "/src/d" + strconv.Itoa(i%3)
		if f.src.Nodes[d] == nil {
			f.src.Add(d, dir, nil)
		}
		b := bytes.Repeat([]byte{byte(i), byte(i >> 8), 7}, size/3+1)[:size]
		f.src.Add(fmt.Sprintf("%s/f%d", d, i), file, b)
		all[fmt.Sprintf("d%d/f%d", i%3, i)] = b
	}
	return all
}

// files returns the files of a dataset as in the manifest of node i.
func (f *fakeJob) files(i int, id metadata.DatasetID) map[string]metadata.Attr {
	f.t.Helper()
	x, ok := f.nodes[i].data.Tables.Table(id)
	if !ok {
		f.t.Fatalf("node %d has no manifest", i)
	}
	all := make(map[string]metadata.Attr)
	if err := x.(*manifest.Table).Each(func(path string, a metadata.Attr) bool {
		all[strings.TrimPrefix(path, "/")] = a
		return true
	}); err != nil {
		f.t.Fatal(err)
	}
	return all
}

// holder returns the node that has a file.
func (f *fakeJob) holder(a metadata.Attr) metadata.NodeID {
	m := f.registry.View().Map
	return m.Holder(a.Ino, m.Order(a.Ino, a.Layout)[0])
}

// wantFiles reads all files of a dataset from every node that serves it.
func (f *fakeJob) wantFiles(id metadata.DatasetID, want map[string][]byte) {
	f.t.Helper()
	for i, x := range f.nodes {
		if n, _ := f.registry.View().Map.Node(x.Self()); !node.Serving(n) {
			continue
		}
		got := f.files(i, id)
		if len(got) != len(want) {
			f.t.Errorf("node %d has %d files, want %d", i, len(got), len(want))
		}
		for path, b := range want {
			a, ok := got[path]
			if !ok {
				f.t.Errorf("node %d: no %s", i, path)
				continue
			}
			if a.Size == 0 {
				continue
			}
			p := make([]byte, a.Size)
			var from datapath.Reader = x.data.Local
			if id := f.holder(a); id != x.Self() {
				from = x.data.Stores.Of(id)
			}
			if n, err := from.ReadAt(f.t.Context(), a.Ino, p, 0); err != nil || n != len(b) || !bytes.Equal(p, b) {
				f.t.Errorf("node %d: %s: %d bytes of %d, %v", i, path, n, len(b), err)
			}
		}
	}
}
