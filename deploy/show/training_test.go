package show

import (
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// trained returns a dataset with two epochs read, one of them measured by its ranks.
func trained() daemon.DatasetStatus {
	at := func(ms int64) metadata.Time { return metadata.TimeOf(time.UnixMilli(ms)) }
	places := training.Places{Prefetched: training.Count{Samples: 90, Bytes: 9 << 20}, Local: training.Count{Samples: 6, Bytes: 6 << 10}, Source: training.Count{Samples: 1}}
	return daemon.DatasetStatus{
		Dataset: cluster.Dataset{Name: "set", Source: "/src", Phase: cluster.Filling, Started: at(1000)},
		Training: &daemon.TrainingStatus{
			Plan:  &accessplan.Plan{Kind: accessplan.Torch, Seed: 7, Shuffle: true, Ranks: 2},
			State: &accessplan.State{Phase: accessplan.Following, Epoch: 1},
			Epochs: []training.Epoch{
				{Epoch: 0, Began: at(3500), Ended: at(9500), Places: places, StallP50: 0.000016384, StallP99: 0.067108864},
				{Epoch: 1, Ranks: &training.Ranks{Ranks: 2, Batches: 10, Samples: 320, Seconds: 8, Waited: 1, FirstBatch: 1.25, StallP50: 0.002, StallP99: .25, StallMax: .75,
					BySource: map[string]int64{"remote": 20, "local": 300}}},
			},
			Missing: []string{"n3"},
		},
	}
}

func TestReportOfTraining(t *testing.T) {
	var b strings.Builder
	if err := Report(&b, daemon.Status{Job: "7", Datasets: []daemon.DatasetStatus{trained()}}); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(b.String(), "dataset bytes            0 (0 B)\n")
	if want := `  EPOCH  PREFETCHED    LOCAL        REPLICA  REMOTE  SOURCE   READ P50  READ P99  TOOK
  0      90 (9.0 MiB)  6 (6.0 KiB)  -        -       1 (0 B)  16.4 µs   67.1 ms   6.00 s
  first read answered 2.50 s after the stage-in began
  EPOCH  RANKS  BATCHES  FIRST BATCH  WAITED  STALL P50  STALL P99  STALL MAX  SAMPLES
  1      2      10       1.25 s       12.5 %  2 ms       250 ms     750 ms     320 local:300 remote:20
  n3 not included: no answer
`; got != want {
		t.Errorf("report of the training is\n%s\nwant\n%s", got, want)
	}
}

// TestReportWithoutPlan: reads without a known epoch are in one row.
func TestReportWithoutPlan(t *testing.T) {
	ds := trained()
	ds.Training.Plan, ds.Training.State = nil, nil
	ds.Training.Epochs = ds.Training.Epochs[:1]
	ds.Training.Epochs[0].Epoch = training.Unknown
	var b strings.Builder
	if err := Report(&b, daemon.Status{Datasets: []daemon.DatasetStatus{ds}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n  all    90 (9.0 MiB)", "see bivouac plan --help"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("report is\n%s\nwithout %q", b.String(), want)
		}
	}
}

func TestStatusOfPlan(t *testing.T) {
	var b strings.Builder
	if err := Status(&b, daemon.Status{Datasets: []daemon.DatasetStatus{trained()}}); err != nil {
		t.Fatal(err)
	}
	if want := "\nset is read in the order of its access plan seed:7,ranks=2:\n  followed, epoch 1\n"; !strings.HasSuffix(b.String(), want) {
		t.Errorf("status is\n%s\nwant it to end with\n%s", b.String(), want)
	}
}
