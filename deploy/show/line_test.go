package show

import (
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestLine: one line of printable ASCII without quotes, whatever the number and names of the datasets.
func TestLine(t *testing.T) {
	line := func(s daemon.Status) string {
		t.Helper()
		var b strings.Builder
		if err := Line(&b, s); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	s := job()
	s.Nodes[1] = daemon.NodeStatus{Host: "b", Lost: true}
	s.Datasets[0].Training = &daemon.TrainingStatus{Epochs: []training.Epoch{
		{Places: training.Places{Local: training.Count{Samples: 1}, Remote: training.Count{Samples: 1}}},
		{Places: training.Places{Remote: training.Count{Samples: 2}}, Ranks: &training.Ranks{Waited: 1, Seconds: 40}},
	}}
	want := "bivouac: 2 nodes; set ready, 3 files, 2.9 KiB, staged in 2.00 s, source read 1.00x, reads local 25% remote 75%, waited 2.5%; b lost\n"
	if got := line(s); got != want {
		t.Errorf("Line = %q, want %q", got, want)
	}
	s = job()
	s.Datasets = nil
	for range 5 {
		s.Datasets = append(s.Datasets, daemon.DatasetStatus{Dataset: cluster.Dataset{
			ID: cluster.Dataset{}.ID + 1, Name: "é\"'\n" + strings.Repeat("x", 100), Phase: cluster.Failed}})
		s.Datasets[len(s.Datasets)-1].Name += strings.Repeat("y", len(s.Datasets))
	}
	got := line(s)
	if len(got) != longestLine+1 || strings.IndexFunc(got[:longestLine], func(r rune) bool { return r < ' ' || r > '~' || r == '"' || r == '\'' }) >= 0 {
		t.Errorf("Line = %d characters %q", len(got), got)
	}
}
