package daemon

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TrainingStatus says how training reads a dataset, on all nodes.
type TrainingStatus struct {
	Plan   *accessplan.Plan  `json:"plan,omitempty"`  // without its lists
	State  *accessplan.State `json:"state,omitempty"` // how the plan is followed
	Epochs []training.Epoch  `json:"epochs,omitempty"`
	// Missing lists the hosts whose reads are missing from Epochs: they are down, or did not answer.
	Missing []string `json:"missing,omitempty"`
}

// trainingTime bounds the wait for the other nodes.
const trainingTime = 2 * time.Second

// addTraining adds to s how training reads its datasets. It asks every node.
func (c *ctlServer) addTraining(ctx context.Context, s *Status) {
	ctx, cancel := context.WithTimeout(ctx, trainingTime)
	defer cancel()
	var wg sync.WaitGroup
	for i := range s.Datasets {
		ds := &s.Datasets[i]
		if ds.Phase != cluster.Failed {
			wg.Go(func() { ds.Training = c.trainingStatus(ctx, ds.ID) })
		}
	}
	wg.Wait()
}

// trainingStatus returns how training reads a dataset; nil if nothing is known.
func (c *ctlServer) trainingStatus(ctx context.Context, id metadata.DatasetID) *TrainingStatus {
	var t TrainingStatus
	t.Epochs, t.Missing = c.d.training.Epochs(ctx, id)
	if p, _ := c.d.plans.Plan(id); p != nil {
		short := *p
		short.Paths, short.Indices = nil, nil
		t.Plan, t.State = &short, new(c.d.plans.State(ctx, id))
	}
	if t.Plan == nil && len(t.Epochs) == 0 {
		return nil
	}
	return &t
}

// saveEvery is the number of meter samples between two writes of the log.
const saveEvery = 5

// takeTraining adds the reads of d's mount since the last call to the log.
func takeTraining(d *Daemon, at time.Time) {
	a, ok := d.meter.activity()
	if !ok {
		return
	}
	for _, ds := range d.View().Datasets {
		r, f := a.Reads[ds.ID], training.Following{}
		if p, _ := d.plans.Plan(ds.ID); p != nil {
			s := d.plans.Here(ds.ID)
			r.Prefetched = training.Count{Samples: s.Hits, Bytes: s.Prefetched}
			f = training.Following{Digest: s.Digest, Epoch: s.Epoch, Single: p.FirstOnly}
		}
		d.training.Take(at, ds.ID, r, f)
	}
}

// postTraining records a rank's measurements of an epoch, or a list of measurements.
func (c *ctlServer) postTraining(w http.ResponseWriter, r *http.Request) {
	all, ok := readList[training.Measured](w, r, "measurement of a rank")
	if !ok {
		return
	}
	for _, m := range all {
		if err := c.d.training.Post(m); err != nil {
			writeError(w, err)
			return
		}
	}
	writeJSON(w, http.StatusOK, struct{}{})
}
