package plans

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// testNode is a node with its access plans and its files.
type testNode struct {
	*nodetest.Node
	files *dataset.Files
	plans *Plans
}

// newJob returns n nodes of a job with a dataset photos, whose coordinator is node 0.
func newJob(t *testing.T, n int) ([]*testNode, *nodetest.Registry) {
	t.Helper()
	v := nodetest.View(n)
	v.Datasets = []cluster.Dataset{{ID: 1, Name: "photos", Phase: cluster.Sealed}}
	r, net := nodetest.NewRegistry(v), nodetest.NewNetwork()
	var all []*testNode
	for i := range n {
		x := &testNode{Node: nodetest.Join(t, metadata.NodeID(i), r, net)}
		x.files = dataset.NewFiles(filepath.Join(t.TempDir(), "stage"), x)
		x.start()
		all = append(all, x)
	}
	return all, r
}

// start starts the plans afresh, as after a restart of the daemon: the files are kept.
func (x *testNode) start() {
	x.plans = New(x, x.files, time.Millisecond)
	x.Serve(x.files.Handlers())
	x.Serve(x.plans.Handlers())
	x.Spawn(x.plans.Run)
}

// wait waits until the node has the plan with that digest, or none for "".
func (x *testNode) wait(t *testing.T, digest string) *accessplan.Plan {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		p, changed := x.plans.Plan(1)
		if x.plans.digest(1) == digest {
			return p
		}
		select {
		case <-changed:
		case <-time.After(time.Until(end)):
			t.Fatalf("node %d has plan %q, want %q", x.Self(), x.plans.digest(1), digest)
		}
	}
}

func photos(seed uint64) accessplan.Plan {
	return accessplan.Plan{Dataset: "photos", Kind: accessplan.Torch, Seed: seed, Shuffle: true, Ranks: 3}
}

// TestSetReachesAllNodes: a plan set on a node that does not coordinate the dataset reaches all nodes, replaces an
// earlier one, and can be cleared everywhere.
func TestSetReachesAllNodes(t *testing.T) {
	all, _ := newJob(t, 3)
	ctx := t.Context()
	for seed := range uint64(3) {
		from := all[(seed+2)%3]
		digest, err := from.plans.Set(ctx, photos(seed))
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range all {
			if p := x.wait(t, digest); p.Seed != seed || p.Ranks != 3 {
				t.Errorf("node %d has plan %+v", x.Self(), p)
			}
		}
		if again, err := all[0].plans.Set(ctx, photos(seed)); again != digest || err != nil {
			t.Errorf("the same plan again: %q, %v, want %q", again, err, digest)
		}
	}
	if err := all[1].plans.Clear(ctx, "photos"); err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		x.wait(t, "")
	}
	if err := all[1].plans.Clear(ctx, "photos"); err != nil {
		t.Errorf("cleared again: %v", err)
	}
}

// TestSetAgain: setting a plan again that another one had replaced restores it on all nodes.
func TestSetAgain(t *testing.T) {
	all, _ := newJob(t, 2)
	for range 5 {
		for seed := range uint64(2) {
			digest, err := all[1].plans.Set(t.Context(), photos(seed))
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range all {
				x.wait(t, digest)
			}
		}
	}
}

// TestRestart: a daemon has its plan again after a restart, even if its files were removed.
func TestRestart(t *testing.T) {
	all, _ := newJob(t, 3)
	digest, err := all[1].plans.Set(t.Context(), photos(7))
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		x.wait(t, digest)
	}
	all[1].start()
	all[1].wait(t, digest)
	if err := os.RemoveAll(all[1].files.Dir(1)); err != nil {
		t.Fatal(err)
	}
	all[1].start()
	if p := all[1].wait(t, digest); p.Seed != 7 {
		t.Errorf("plan after a restart on an empty disk: %+v", p)
	}
}

// TestBodyIsVerified: a node does not use a file that differs from the plan in the registry.
func TestBodyIsVerified(t *testing.T) {
	all, _ := newJob(t, 2)
	digest, err := all[0].plans.Set(t.Context(), photos(7))
	if err != nil {
		t.Fatal(err)
	}
	all[1].wait(t, digest)
	path := all[1].files.Path(1, FileName(digest))
	for _, bad := range []string{"", "{", `{"dataset":"photos","kind":"torch","seed":8,"shuffle":true}`, `{"dataset":"photos","kind":"x"}`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := read(path, digest); err == nil {
			t.Errorf("file %q is accepted as the plan: %+v", bad, p)
		}
	}
	all[1].start()
	if p := all[1].wait(t, digest); p.Seed != 7 {
		t.Errorf("plan after the file was damaged: %+v", p)
	}
}

func TestSetRefused(t *testing.T) {
	all, r := newJob(t, 1)
	if _, err := all[0].plans.Set(t.Context(), accessplan.Plan{Dataset: "photos"}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a plan without a kind: %v, want EINVAL", err)
	}
	other := photos(1)
	other.Dataset = "other"
	if _, err := all[0].plans.Set(t.Context(), other); !errors.Is(err, syscall.ENOENT) || !strings.Contains(err.Error(), "other") {
		t.Errorf("a plan of no dataset: %v, want ENOENT with the name", err)
	}
	digest, err := all[0].plans.Set(t.Context(), photos(1))
	if err != nil {
		t.Fatal(err)
	}
	all[0].wait(t, digest)
	r.Change(func(v cluster.View) cluster.View {
		v.Datasets = []cluster.Dataset{{ID: 1, Name: "photos", Phase: cluster.Failed, Plan: digest}}
		return v
	})
	all[0].wait(t, "")
	if _, _, err := all[0].plans.Of("photos"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the plan of a dataset that failed: %v, want ENOENT", err)
	}
}

func TestPositions(t *testing.T) {
	all, _ := newJob(t, 1)
	p := all[0].plans
	at := func(rank, pos int, digest string) accessplan.Position {
		return accessplan.Position{Dataset: "photos", Digest: digest, Rank: rank, Position: pos}
	}
	if err := p.Report([]accessplan.Position{at(0, 1, "")}); err != nil || p.Positions(1) != nil {
		t.Errorf("a position without a plan: %v, %v", p.Positions(1), err)
	}
	digest, err := p.Set(t.Context(), photos(1))
	if err != nil {
		t.Fatal(err)
	}
	all[0].wait(t, digest)
	if err := p.Report([]accessplan.Position{at(2, 5, digest), at(0, 3, ""), at(1, 9, "another"), at(2, 6, digest)}); err != nil {
		t.Fatal(err)
	}
	got := p.Positions(1)
	if len(got) != 2 || got[0].Rank != 0 || got[0].Position != 3 || got[1].Rank != 2 || got[1].Position != 6 {
		t.Errorf("positions are %+v", got)
	}
	for _, bad := range []accessplan.Position{at(-1, 0, ""), at(maxRanks, 0, ""), at(0, -1, ""), {Dataset: "photos", Epoch: -1}} {
		if err := p.Report([]accessplan.Position{bad}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%+v: %v, want EINVAL", bad, err)
		}
	}
	if err := p.Report([]accessplan.Position{{Dataset: "gone"}}); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a position in no dataset: %v, want ENOENT", err)
	}
}

// TestState: the states of the nodes are merged, without nodes that do not answer.
func TestState(t *testing.T) {
	all, _ := newJob(t, 3)
	digest, err := all[0].plans.Set(t.Context(), photos(1))
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range all {
		x.wait(t, digest)
		x.plans.SetState(func(metadata.DatasetID) accessplan.State {
			s := accessplan.State{Phase: accessplan.Following, Epoch: i, Hits: 3, Misses: 1, Ranks: []accessplan.RankState{{Rank: i, Position: 10 * i}}}
			if i == 0 {
				s = accessplan.State{Phase: accessplan.Stale, Reason: "why"}
			}
			return s
		})
	}
	s := all[0].plans.State(t.Context(), 1)
	if s.Phase != accessplan.Following || s.Reason != "" || s.Epoch != 2 || s.Hits != 6 || s.HitRate != 0.75 || len(s.Ranks) != 2 || s.Ranks[1].Node != "node2" || s.Digest != digest {
		t.Errorf("state is %+v", s)
	}
	all[0].Network().Cut(2, syscall.EHOSTDOWN)
	if s := all[0].plans.State(t.Context(), 1); len(s.Ranks) != 1 || s.Ranks[0].Rank != 1 {
		t.Errorf("state without node 2 is %+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = all[0].plans.State(ctx, 1) // must not hang
}
