package testcluster

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// TestOwnChange: when a proposal returns, the proposing node's view has the change, on the leader, on other members
// of the group and outside it; Refresh adds the changes of other nodes.
func TestOwnChange(t *testing.T) {
	t.Parallel()
	c := Start(t, Config{Nodes: 6, Timing: daemon.Timing{Report: time.Second, Down: time.Minute}})
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	for i := range 5 * len(c.Nodes) {
		n := c.Nodes[i%len(c.Nodes)]
		ds := cluster.Dataset{Name: fmt.Sprint("d", i), Source: "/src", Coordinator: n.Self()}
		v, err := n.Propose(ctx, raftstore.Command{Kind: raftstore.KindAddDataset, Dataset: ds})
		if err != nil {
			t.Fatal(err)
		}
		// The node soon finds that it does not read the dataset, and marks it failed.
		k := slices.IndexFunc(v.Datasets, func(x cluster.Dataset) bool { return x.Name == ds.Name })
		if k < 0 {
			t.Fatalf("the answer to node %d has no dataset %s", n.Self(), ds.Name)
		}
		id := v.Datasets[k].ID
		if _, own := n.View().Dataset(id); !own {
			t.Fatalf("node %d does not know the dataset that it has added", n.Self())
		}
		next := c.Nodes[(i+1)%len(c.Nodes)]
		if err := next.Refresh(ctx); err != nil {
			t.Fatal(err)
		}
		if _, ok := next.View().Dataset(id); !ok {
			t.Fatalf("node %d does not know %s after Refresh", next.Self(), ds.Name)
		}
		gone := cluster.Dataset{ID: id, Phase: cluster.Removed}
		if _, err := n.Propose(ctx, raftstore.Command{Kind: raftstore.KindRemoveDataset, Dataset: gone}); err != nil {
			t.Fatal(err)
		}
		if x, _ := n.View().Dataset(id); x.Phase != cluster.Removed {
			t.Fatalf("%s is %v on node %d after it was removed there", ds.Name, x.Phase, n.Self())
		}
	}
}
