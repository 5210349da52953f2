package main

import (
	"context"
	"errors"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// replaying is a daemon that has restarted: its view is an old one until a leader has answered, and its dataset can be
// read a moment later.
type replaying struct {
	refused  int // number of attempts that find no leader
	answered bool
	asked    int
}

func (r *replaying) Refresh(context.Context) error {
	if r.refused > 0 {
		r.refused--
		return errors.New("no leader")
	}
	r.answered = true
	return nil
}

func (r *replaying) WaitUp(context.Context) error { return nil }

func (r *replaying) View() cluster.View {
	if !r.answered {
		return cluster.View{Version: 3}
	}
	return cluster.View{Version: 13, Datasets: []cluster.Dataset{{ID: 1, Phase: cluster.Filling}}}
}

func (r *replaying) Datasets() []cluster.Dataset {
	if r.asked++; !r.answered || r.asked < 3 {
		return nil
	}
	return r.View().Datasets
}

// TestTakeoverAwaitsDatasets: a daemon that takes over a mount does not serve it with an old view in which no dataset
// is published, since files in use by programs would be ENOENT.
func TestTakeoverAwaitsDatasets(t *testing.T) {
	r := new(replaying)
	if err := awaitDatasets(t.Context(), r); err != nil || len(r.Datasets()) != 1 {
		t.Errorf("awaitDatasets = %v, with datasets %v, want one", err, r.Datasets())
	}
}

// TestSettle: datasets are known once a leader has answered, however late, and never earlier.
func TestSettle(t *testing.T) {
	r, known := &replaying{refused: 3}, 0
	if err := settle(t.Context(), r, func() { known++ }); err != nil || known != 1 || len(r.Datasets()) != 1 {
		t.Errorf("settle = %v, known %d times, with datasets %v; want one of each", err, known, r.Datasets())
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := settle(stopped, &replaying{refused: 1 << 30}, func() { known++ }); err == nil || known != 1 {
		t.Errorf("settle without a leader = %v, known %d times", err, known)
	}
}
