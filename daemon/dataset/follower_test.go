package dataset

import (
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// TestEndedBeforeTheMount: a dataset that ended before the node's mount existed is reported once it exists, since an
// earlier run of the daemon may have shown the dataset.
func TestEndedBeforeTheMount(t *testing.T) {
	nodes, r := newNodes(t, 1)
	r.Change(func(v cluster.View) cluster.View {
		v.Datasets = append(v.Datasets, cluster.Dataset{ID: 6, Phase: cluster.Staging}, cluster.Dataset{ID: 7, Phase: cluster.Removed}, cluster.Dataset{ID: 8, Phase: cluster.Failed})
		return v
	})
	var got []metadata.DatasetID
	nodes[0].Follower.SetTree(func(ds cluster.Dataset, _ manifest.Summary) { got = append(got, ds.ID) }, func(cluster.Dataset) bool { return false })
	if want := []metadata.DatasetID{7, 8}; !slices.Equal(got, want) {
		t.Errorf("datasets %v are reported, want %v", got, want)
	}
}
