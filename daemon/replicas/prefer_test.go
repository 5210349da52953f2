package replicas

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Files lists all files in one directory.
func (f fakeTable) Files(fn func(dir string, number uint32, name string, a metadata.Attr) bool) error {
	for i, a := range f {
		if !fn("d", 1, fmt.Sprintf("%06d", i), a) {
			break
		}
	}
	return nil
}

// planned is a job with a known access plan.
type planned struct {
	m     cluster.Map
	files fakeTable
	plan  *accessplan.Plan
	ds    cluster.Dataset
	reads []map[metadata.Ino]int // by node: how often it reads each file in the epochs that count
}

// newPlanned creates a random job, and counts the reads of each rank.
func newPlanned(t *testing.T, seed uint64) *planned {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 3))
	nodes := 2 + r.IntN(4)
	x := &planned{m: cluster.NewMap(seed, []string{"a", "b", "c", "d", "e", "f"}[:nodes]), ds: cluster.Dataset{ID: 1, Replicas: cluster.ReplicasSpare}}
	for i := range nodes {
		x.m = x.m.WithState(metadata.NodeID(i), cluster.Up, "")
	}
	for i := range 100 + r.IntN(200) {
		x.files = append(x.files, metadata.Attr{
			Ino: metadata.SealedIno(1, 0, uint32(i+1)), Size: 1 + r.Int64N(100), Layout: metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(r.IntN(nodes))},
		})
	}
	x.plan = &accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Seed: seed, Ranks: nodes * (1 + r.IntN(3)), Shuffle: r.IntN(3) > 0, DropLast: true, Epochs: r.IntN(12)}
	x.count(t)
	return x
}

// count counts the reads according to the plan.
func (x *planned) count(t *testing.T) {
	t.Helper()
	nodes := len(x.m.Nodes)
	x.reads = nil
	for range nodes {
		x.reads = append(x.reads, make(map[metadata.Ino]int))
	}
	from, to := 1, 1+mostEpochs
	switch {
	case !x.plan.Shuffle || x.plan.Epochs == 1:
		from, to = 0, 1
	case x.plan.Epochs > 0:
		to = min(to, x.plan.Epochs)
	}
	for e := from; e < to; e++ {
		epoch, err := x.plan.Epoch(e, len(x.files))
		if err != nil {
			t.Fatal(err)
		}
		for rank := range x.plan.Ranks {
			for pos := range epoch.Len(rank) {
				x.reads[rank/(x.plan.Ranks/nodes)][x.files[epoch.At(rank, pos)].Ino]++
			}
		}
	}
}

// set returns the set of a node.
func (x *planned) set(t *testing.T, self metadata.NodeID, order *preference) *set {
	t.Helper()
	s, err := newSet(x.ds, x.files, x.m, self, order)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestPreference: a node first makes replicas of the files that it reads most. Its mark is always valid for a node with
// the same plan, and tells a node without the plan nothing until all replicas exist.
func TestPreference(t *testing.T) {
	for seed := range uint64(100) {
		x := newPlanned(t, seed)
		r := rand.New(rand.NewPCG(seed, 4))
		nodes := len(x.m.Nodes)
		self, other := metadata.NodeID(r.IntN(nodes)), metadata.NodeID(r.IntN(nodes))
		s := x.set(t, self, newPreference(x.plan, x.files, nodes))
		for i := 1; i < len(s.files); i++ {
			if before, f := x.reads[self][s.files[i-1].Ino], x.reads[self][s.files[i].Ino]; before < f {
				t.Fatalf("seed %d: node %d makes a file first that it reads %d times, and then one that it reads %d times", seed, self, before, f)
			}
		}
		knows, not := x.set(t, other, newPreference(x.plan, x.files, nodes)), x.set(t, other, nil)
		told := 0
		for s.made < len(s.files) {
			for range min(1+r.IntN(60), len(s.files)-s.made) {
				s.put(&s.files[s.made], present)
				s.made++
			}
			m := s.mark(self)
			for _, f := range s.files {
				common := s.m.ReplicaPosition(f.Ino, 0)
				if knows.reached(m, f.Ino, common) {
					if told++; f.state != present {
						t.Fatalf("seed %d: mark %+v claims a file that is not there", seed, m)
					}
				}
				if not.reached(m, f.Ino, common) && s.made < len(s.files) {
					t.Fatalf("seed %d: mark %+v means something without its plan", seed, m)
				}
			}
			if m.Files > s.have.files || s.made == len(s.files) && (m.Below != math.MaxUint64 || m.Files != m.OfFiles) {
				t.Fatalf("seed %d: mark %+v, %+v are there", seed, m, s.have)
			}
		}
		if told < len(s.files) {
			t.Errorf("seed %d: %d of %d replicas are known to others in the end", seed, told, len(s.files))
		}
	}
}

// TestTrade: replicas were made in the common order until the node was full; then a plan becomes known. Files read less
// often are traded for files read more often, until no trade is an improvement. None is made twice. Under another plan,
// traded replicas are made again if that plan reads them more often.
func TestTrade(t *testing.T) {
	for seed := range uint64(100) {
		x := newPlanned(t, seed)
		r := rand.New(rand.NewPCG(seed, 5))
		self := metadata.NodeID(r.IntN(len(x.m.Nodes)))
		s := x.set(t, self, nil)
		for s.made = range r.IntN(len(s.files)) {
			s.put(&s.files[s.made], present)
		}
		room := s.have.bytes
		p := New(Config{Stored: nothing})
		p.bytes.Store(s.spare)
		first := x.plan
		other := *first
		other.Seed++
		for i, plan := range []*accessplan.Plan{first, &other, first} {
			x.plan = plan
			x.count(t)
			was := s
			s = x.set(t, self, newPreference(plan, x.files, len(x.m.Nodes)))
			s.inherit(was)
			p.sets[1] = s
			if m := s.mark(self); m.Below > s.files[0].pos && s.files[0].state != present {
				t.Fatalf("seed %d: mark %+v in another order covers files without a replica", seed, m)
			}
			tradeAll(t, p, s, room)
			least, most := math.MaxInt, 0
			for _, f := range s.files {
				if n := x.reads[self][f.Ino]; f.state == present {
					least = min(least, n)
				} else {
					most = max(most, n)
				}
			}
			if least < most {
				t.Errorf("seed %d, plan %d: a replica that is read %d times is there, and none of a file that is read %d times", seed, i, least, most)
			}
			if p.Bytes() != s.have.bytes || s.have != s.counted() {
				t.Errorf("seed %d: %d bytes can be given back, %+v counted %+v", seed, p.Bytes(), s.have, s.counted())
			}
		}
	}
}

// tradeAll makes replicas as batch and makeBatch do, and trades until that brings no improvement.
func tradeAll(t *testing.T, p *Replicas, s *set, room int64) {
	t.Helper()
	left := make(map[metadata.Ino]bool)
	for {
		for ; s.made < len(s.files); s.made++ {
			if f := &s.files[s.made]; f.state == absent {
				if s.have.bytes+f.size > room {
					break
				}
				if left[f.Ino] {
					t.Fatalf("%v is made again", f.Ino)
				}
				p.bytes.Add(s.put(f, present))
			}
		}
		ps := p.pickWorse(s, 100_000)
		if len(ps) == 0 {
			break
		}
		for _, id := range ps {
			left[id.Ino] = true
			p.move(id, traded, leaving)
		}
	}
}

// TestAlike: a plan without per-node information does not change the order.
func TestAlike(t *testing.T) {
	x := newPlanned(t, 1)
	want := x.set(t, 0, nil)
	for name, change := range map[string]func(p *accessplan.Plan){
		"number of ranks unknown": func(p *accessplan.Plan) { p.Ranks = 0 },
		"another dataset":         func(p *accessplan.Plan) { p.Files = len(x.files) + 1 },
		"no such directory":       func(p *accessplan.Plan) { p.Root = "nowhere" },
		"first epoch only":        func(p *accessplan.Plan) { p.Kind, p.FirstOnly = accessplan.List, true },
	} {
		plan := *x.plan
		change(&plan)
		s := x.set(t, 0, newPreference(&plan, x.files, len(x.m.Nodes)))
		if !slices.Equal(s.files, want.files) || s.mark(0).Order != "" {
			t.Errorf("%s: another order: mark %+v", name, s.mark(0))
		}
	}
}

// TestReordered: the order follows the registry's plan once it is here, but not for other kinds of replicas, nor after
// replicas were given back.
func TestReordered(t *testing.T) {
	x := newPlanned(t, 1)
	other := *x.plan
	x.ds.Plan = "digest"
	for _, tt := range []struct {
		name     string
		had, has *accessplan.Plan
		replicas cluster.Replicas
		ceiling  uint64
		want     bool
	}{
		{"the first plan", nil, x.plan, cluster.ReplicasSpare, math.MaxUint64, true},
		{"the same plan", x.plan, x.plan, cluster.ReplicasSpare, math.MaxUint64, false},
		{"another plan", &other, x.plan, cluster.ReplicasSpare, math.MaxUint64, true},
		{"a plan that is not here", x.plan, nil, cluster.ReplicasSpare, math.MaxUint64, false},
		{"all nodes have all", nil, x.plan, cluster.ReplicasAll, math.MaxUint64, false},
		{"replicas were given back", nil, x.plan, cluster.ReplicasSpare, math.MaxUint64 / 2, false},
	} {
		r := New(Config{Plan: func(cluster.Dataset) *accessplan.Plan { return tt.has }})
		s := &set{ceiling: tt.ceiling}
		if tt.had != nil {
			s.order = &preference{plan: tt.had}
		}
		x.ds.Replicas = tt.replicas
		if got := r.reordered(s, x.ds); got != tt.want {
			t.Errorf("%s: reordered = %v", tt.name, got)
		}
	}
}
