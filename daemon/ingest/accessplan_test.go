package ingest

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// TestOrderSetsPlan: the order of a stage-in becomes the access plan of the dataset; if it cannot be set, the stage-in
// still succeeds.
func TestOrderSetsPlan(t *testing.T) {
	f := newJob(t, 1)
	f.src.Add("/list", 0o100644, []byte("b/2.jpg\n./a/1.jpg\n"))
	seeded := accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Seed: 3, Shuffle: true, Ranks: 2, Root: "train"}
	listed := accessplan.Plan{Dataset: "set", Kind: accessplan.List, Paths: []string{"b/2.jpg", "a/1.jpg"}}
	for name, tt := range map[string]struct {
		order stagein.Order
		want  []string
		fails bool
	}{
		"sampler":       {stagein.Order{Kind: stagein.OrderSeed, Seed: 3, Ranks: 2, Root: "train"}, []string{seeded.Digest()}, false},
		"list":          {stagein.Order{Kind: stagein.OrderList, List: "/list"}, []string{listed.Digest()}, false},
		"missing list":  {stagein.Order{Kind: stagein.OrderList, List: "/none"}, nil, false},
		"no order":      {stagein.Order{Kind: stagein.OrderSource}, nil, false},
		"registry away": {stagein.Order{Kind: stagein.OrderSeed, Seed: 3, Ranks: 2, Root: "train"}, []string{seeded.Digest()}, true},
	} {
		var got []string
		s := f.nodes[0].stager
		s.cfg.SetPlan = func(_ context.Context, p accessplan.Plan) (string, error) {
			got = append(got, p.Digest())
			if _, known := f.registry.View().Dataset(1); !known {
				t.Errorf("%s: the plan is set before this node knows the dataset", name)
			}
			if tt.fails {
				return "", errors.Join(errors.New("no leader"), syscall.ETIMEDOUT)
			}
			return p.Digest(), p.Check()
		}
		c := s.newCoordinator(cluster.Dataset{ID: 1, Name: "set"}, stagein.Request{Options: stagein.Options{Fill: tt.order}})
		f.registry.Change(func(v cluster.View) cluster.View { v.Datasets = nil; return v })
		go f.registry.Change(func(v cluster.View) cluster.View {
			v.Datasets = []cluster.Dataset{{ID: 1, Name: "set"}}
			return v
		})
		c.setPlan(t.Context())
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: set the plans %q, want %q", name, got, tt.want)
		}
	}
}
