package ingest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// tarOf adds a tar of n members to the source, and returns their contents.
func (f *fakeJob) tarOf(path string, n, size int) map[string][]byte {
	all := make(map[string][]byte)
	var ms []stageintest.Member
	for i := range n {
		name := fmt.Sprintf("m%d", i)
		all[name] = bytes.Repeat([]byte{byte(i), 3, byte(i >> 8)}, size/3+1)[:size]
		ms = append(ms, stageintest.TarFile(name, all[name]))
	}
	f.src.Add(path, 0o100644, stageintest.WriteTar(f.t, tar.FormatGNU, ms))
	return all
}

// TestScanAndFill: the coordinator scans a directory, and the owners fetch its files.
func TestScanAndFill(t *testing.T) {
	f := startJob(t, 3)
	want := f.tree(60, 5000)
	if err := f.nodes[1].stager.StageIn(t.Context(), job.Dataset{Source: "/src", Name: "set"}); err != nil {
		t.Fatal(err)
	}
	ds := f.sealed()
	if ds.Coordinator != 1 || ds.Files != 60 || ds.Bytes != 60*5000 || !ds.Fill || ds.Reading {
		t.Errorf("dataset %+v", ds)
	}
	f.wantFiles(ds.ID, want)
	p, total := f.nodes[1].stager.Progress(ds.ID)
	if total != 60*5000 || p.SourceBytes != 0 {
		t.Errorf("progress %+v of %d", p, total)
	}
	if _, total := f.nodes[0].stager.Progress(ds.ID); total != 0 {
		t.Error("a node that does not coordinate knows the total")
	}
	err := f.nodes[0].stager.StageIn(t.Context(), job.Dataset{Source: "/src", Name: "set"})
	if !errors.Is(err, syscall.EEXIST) {
		t.Errorf("the same name again: %v, want EEXIST", err)
	}
}

// TestSinglePass: all nodes read a tar, one part each.
func TestSinglePass(t *testing.T) {
	f := startJob(t, 3)
	want := f.tarOf("/a.tar", 300, 40_000)
	if err := f.nodes[0].stager.StageIn(t.Context(), job.Dataset{Source: "/a.tar", Name: "set"}); err != nil {
		t.Fatal(err)
	}
	ds := f.sealed()
	if !ds.Reading || ds.Files != int64(len(want)) {
		t.Errorf("dataset %+v", ds)
	}
	f.wantFiles(ds.ID, want)
	if p, total := f.nodes[0].stager.Progress(ds.ID); p.SourceBytes < total || total == 0 {
		t.Errorf("%d bytes of %d were read", p.SourceBytes, total)
	}
	for i, x := range f.nodes {
		left, err := os.ReadDir(x.data.Files.Dir(ds.ID))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range left {
			if strings.HasPrefix(e.Name(), "records-") || strings.HasPrefix(e.Name(), "attempt-") || strings.HasPrefix(e.Name(), dataset.State) {
				t.Errorf("node %d keeps %s", i, e.Name())
			}
		}
	}
}

// TestSkips: unreadable files are left out and listed.
func TestSkips(t *testing.T) {
	f := startJob(t, 2)
	want := f.tree(9, 100)
	f.src.Nodes["/src/d1/f1"].Err = syscall.EACCES
	spec := job.Dataset{Source: "/src", Name: "set", Options: stagein.Options{OnError: stagein.OnErrorSkip}}
	if err := f.nodes[0].stager.StageIn(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	ds := f.sealed()
	delete(want, "d1/f1")
	f.wantFiles(ds.ID, want)
	for i, x := range f.nodes {
		path, err := x.data.Files.Skips(t.Context(), ds)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || ds.Skipped != 1 || bytes.Count(b, []byte("\n")) != 1 || !bytes.Contains(b, []byte("d1/f1")) {
			t.Errorf("node %d: %d skipped: %q, %v", i, ds.Skipped, b, err)
		}
	}
}

// TestFailure: a stage-in that fails removes all its data on all nodes.
func TestFailure(t *testing.T) {
	f := startJob(t, 3)
	f.tarOf("/a.tar", 300, 40_000)
	b := f.src.Nodes["/a.tar"].Data
	copy(b[len(b)/2:], bytes.Repeat([]byte{0xa5}, 200_000)) // no header is valid any more
	err := f.nodes[1].stager.StageIn(t.Context(), job.Dataset{Source: "/a.tar", Name: "set"})
	if err == nil {
		t.Fatal("a damaged tar was staged")
	}
	ds := f.dataset()
	if ds.Phase != cluster.Failed || ds.Error == "" {
		t.Errorf("dataset %+v", ds)
	}
	for i, x := range f.nodes {
		f.eventually(fmt.Sprintf("node %d has removed all", i), func() bool {
			s, err := x.store.Space(t.Context())
			_, e := os.Stat(x.data.Files.Dir(ds.ID))
			return err == nil && s.Used == 0 && os.IsNotExist(e)
		})
		err := x.data.Fence.Write(t.Context(), metadata.SealedIno(ds.ID, 1, 1), []byte("late"), 0)
		if !errors.Is(err, syscall.ECANCELED) {
			t.Errorf("node %d: a late write: %v, want ECANCELED", i, err)
		}
	}
	if err := f.nodes[1].stager.StageIn(t.Context(), job.Dataset{Source: "/nothing", Name: "set"}); err == nil {
		t.Error("a source that is not there was staged")
	}
	if err := f.nodes[1].stager.StageIn(t.Context(), job.Dataset{Source: "relative", Name: "x"}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a relative path: %v", err)
	}
}

// held blocks reads of the source beyond a number of bytes.
type held struct {
	once    sync.Once
	reached chan struct{} // closed when a read is blocked
	release chan struct{}
}

func (f *fakeJob) hold(path string, beyond int64) *held {
	h := &held{reached: make(chan struct{}), release: make(chan struct{})}
	f.src.OnRead = func(p string, off int64) {
		if p == path && off >= beyond {
			h.once.Do(func() { close(h.reached) })
			<-h.release
		}
	}
	return h
}

// TestTakeover: a coordinator is lost while the nodes read; a standby continues from its copy of the state.
func TestTakeover(t *testing.T) {
	f := startJob(t, 4)
	want := f.tarOf("/a.tar", 400, 40_000)
	size := int64(len(f.src.Nodes["/a.tar"].Data))
	h := f.hold("/a.tar", size*9/10)
	done := make(chan error, 1)
	go func() {
		done <- f.nodes[2].stager.StageIn(context.Background(), job.Dataset{Source: "/a.tar", Name: "set"})
	}()
	<-h.reached
	f.net.Cut(2, syscall.EHOSTDOWN)
	f.registry.SetState(2, cluster.Down)
	f.eventually("another coordinates", func() bool { return f.dataset().Coordinator == 0 && f.dataset().Attempt == 2 })
	close(h.release)
	ds := f.sealed()
	f.wantFiles(ds.ID, want)
	if err := <-done; !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("the lost coordinator: %v, want ECANCELED", err)
	}
}

// TestParticipantIsLost: another node reads the part, and late writes of the lost node are refused.
func TestParticipantIsLost(t *testing.T) {
	f := startJob(t, 3)
	want := f.tarOf("/a.tar", 400, 40_000)
	h := f.hold("/a.tar", int64(len(f.src.Nodes["/a.tar"].Data))*9/10)
	done := make(chan error, 1)
	go func() {
		done <- f.nodes[0].stager.StageIn(context.Background(), job.Dataset{Source: "/a.tar", Name: "set"})
	}()
	<-h.reached
	f.eventually("all boundaries are known", func() bool {
		c := f.nodes[0].stager.coordinator(f.dataset().ID)
		return c != nil
	})
	f.net.Cut(2, syscall.EHOSTDOWN)
	f.registry.SetState(2, cluster.Down)
	close(h.release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	f.wantFiles(f.sealed().ID, want)
}

// TestRequestsAreChecked: requests from peers are validated.
func TestRequestsAreChecked(t *testing.T) {
	f := newJob(t, 2)
	from := f.nodes[1]
	f.registry.Change(func(v cluster.View) cluster.View {
		v.Datasets = []cluster.Dataset{{ID: 1, Name: "a", Phase: cluster.Sealed}, {ID: 2, Name: "b", Phase: cluster.Staging, Coordinator: 0, Attempt: 1}}
		return v
	})
	m := f.registry.View().Map
	plan := func(change func(*stagein.Plan)) partRequest {
		p := &stagein.Plan{Dataset: 9, Map: m, Parts: []stagein.Part{{Node: 0}}}
		change(p)
		return partRequest{Plan: p}
	}
	for name, c := range map[string]struct {
		q    partRequest
		want syscall.Errno
	}{
		"no plan":           {partRequest{}, syscall.EINVAL},
		"no dataset":        {plan(func(p *stagein.Plan) { p.Dataset = 0 }), syscall.EINVAL},
		"no such part":      {plan(func(p *stagein.Plan) { p.Parts = nil }), syscall.EINVAL},
		"another node":      {plan(func(p *stagein.Plan) { p.Parts[0].Node = 1 }), syscall.EINVAL},
		"another number":    {plan(func(p *stagein.Plan) { p.Parts[0].Index = 5 }), syscall.EINVAL},
		"a small map":       {plan(func(p *stagein.Plan) { p.Map.Nodes = p.Map.Nodes[:1] }), syscall.EINVAL},
		"a node of no job":  {plan(func(p *stagein.Plan) { p.Parts = append(p.Parts, stagein.Part{Index: 1, Node: 77}) }), syscall.EINVAL},
		"not coordinator":   {plan(func(p *stagein.Plan) { p.Dataset = 2 }), syscall.EPERM},
		"a dataset is done": {plan(func(p *stagein.Plan) { p.Dataset = 1 }), syscall.EPERM},
	} {
		q, err := tasks.NewRequest("x", kindPart, c.q)
		if err != nil {
			t.Fatal(err)
		}
		if err := from.Call(t.Context(), 0, wire.OpTask, q, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		op   wire.Op
		q    any
		want syscall.Errno
	}{
		"abort of nothing":           {wire.OpStageAbort, abortRequest{}, syscall.EPERM},
		"abort of what is ready":     {wire.OpStageAbort, abortRequest{Dataset: 1, Drop: true}, syscall.EPERM},
		"abort by another":           {wire.OpStageAbort, abortRequest{Dataset: 2, Drop: true}, syscall.EPERM},
		"exclude of what is ready":   {wire.OpStageAbort, abortRequest{Dataset: 1, Exclude: []stagein.Try{{Number: 1}}}, syscall.EPERM},
		"boundary of what is ready":  {wire.OpStageBoundary, boundaryRequest{Dataset: 1}, syscall.ESTALE},
		"boundary by another":        {wire.OpStageBoundary, boundaryRequest{Dataset: 2, ToReader: true}, syscall.EPERM},
		"boundary to no coordinator": {wire.OpStageBoundary, boundaryRequest{Dataset: 2}, syscall.ESTALE},
		"replica of another":         {wire.OpStandbyReplicate, replicateRequest{Dataset: 2, Attempt: 1}, syscall.EPERM},
		"replica of what is ready":   {wire.OpStandbyReplicate, replicateRequest{Dataset: 1}, syscall.EPERM},
		"replica of nothing":         {wire.OpStandbyReplicate, replicateRequest{Dataset: 5}, syscall.EPERM},
	} {
		if err := from.Call(t.Context(), 0, c.op, c.q, nil); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	s := f.nodes[0].stager
	for i := range maxBoundaries {
		if _, err := s.mailbox(boundaryKey{9, i}); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.Call(t.Context(), 0, wire.OpStageBoundary, boundaryRequest{Dataset: 8, ToReader: true}, nil); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("too many boundaries: %v", err)
	}
	s.Discard(9)
	if err := from.Call(t.Context(), 0, wire.OpStageBoundary, boundaryRequest{Dataset: 8, ToReader: true}, nil); err != nil {
		t.Error(err)
	}
	f.nodes[0].data.Fence.End(8)
	if err := from.Call(t.Context(), 0, wire.OpStageBoundary, boundaryRequest{Dataset: 8, ToReader: true}, nil); !errors.Is(err, syscall.ECANCELED) {
		t.Errorf("a boundary of a dataset that failed: %v", err)
	}
}

// TestAdopt: a node adopts a stage-in that names it as coordinator, or reports that it cannot.
func TestAdopt(t *testing.T) {
	for name, c := range map[string]struct {
		ds   cluster.Dataset
		want cluster.Phase
		says string
	}{
		"a scan":                    {cluster.Dataset{Spec: `{"source":"/src","name":"set"}`}, cluster.Publishing, ""},
		"no request":                {cluster.Dataset{}, cluster.Failed, "stage it in again"},
		"a damaged request":         {cluster.Dataset{Spec: "{"}, cluster.Failed, "was interrupted"},
		"too many attempts":         {cluster.Dataset{Spec: "{}", Attempt: cluster.MaxAttempts}, cluster.Failed, "was interrupted"},
		"a state that is nowhere":   {cluster.Dataset{Spec: `{"source":"/src","name":"set"}`, Reading: true}, cluster.Failed, "was interrupted"},
		"a source that is not here": {cluster.Dataset{Spec: `{"source":"/other","name":"set"}`}, cluster.Failed, "/other"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newJob(t, 2)
			f.tree(3, 10)
			ds := c.ds
			ds.ID, ds.Name, ds.Source, ds.Phase = 1, "set", "/src", cluster.Staging
			f.registry.Change(func(v cluster.View) cluster.View { v.Datasets = []cluster.Dataset{ds}; return v })
			f.eventually("it is adopted", func() bool { return f.nodes[0].stager.Adopt(t.Context(), ds) })
			f.eventually("it is over", func() bool { return f.dataset().Phase != cluster.Staging })
			if got := f.dataset(); got.Phase != c.want || !strings.Contains(got.Error, c.says) {
				t.Errorf("dataset %+v", got)
			}
		})
	}
}

// TestManyAtOnce: a coordinator runs only a few stage-ins concurrently; the others wait.
func TestManyAtOnce(t *testing.T) {
	f := startJob(t, 2)
	want := f.tree(6, 100)
	var wg sync.WaitGroup
	for i := range 2 * maxCoordinated {
		wg.Go(func() {
			if err := f.nodes[0].stager.StageIn(t.Context(), job.Dataset{Source: "/src", Name: fmt.Sprint("set", i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, ds := range f.registry.View().Datasets {
		f.eventually("all are ready", func() bool { x, _ := f.registry.View().Dataset(ds.ID); return x.Phase == cluster.Sealed })
		f.wantFiles(ds.ID, want)
	}
}
