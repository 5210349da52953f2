package main

import (
	"context"
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// TestSettled: the events that end a wait, and the result of the wait.
func TestSettled(t *testing.T) {
	ds := func(phase cluster.Phase, first int64) daemon.DatasetStatus {
		return daemon.DatasetStatus{
			Dataset: cluster.Dataset{Name: "set", Phase: phase, Error: "why", Spec: `{"source":"/s","name":"set","options":{"order":{"kind":"list","list":"/l"}}}`},
			Ready:   phase == cluster.Sealed, Readable: phase == cluster.Filling || phase == cluster.Sealed,
			Progress: &stagein.Progress{First: first, Shares: 2},
		}
	}
	plain := ds(cluster.Filling, 0)
	plain.Spec = `{"source":"/s","name":"set"}`
	for name, c := range map[string]struct {
		ds    daemon.DatasetStatus
		until string
		first int64
		done  bool
		err   string
	}{
		"readable":                    {ds(cluster.Filling, 0), "manifest", 0, true, ""},
		"not all":                     {ds(cluster.Filling, 0), "all", 0, false, ""},
		"all":                         {ds(cluster.Sealed, 0), "all", 0, true, ""},
		"failed":                      {ds(cluster.Failed, 0), "all", 0, true, "set: why"},
		"removed":                     {ds(cluster.Removed, 0), "all", 0, true, "set: why"},
		"first not there":             {ds(cluster.Filling, 9), "manifest", 10, false, ""},
		"first there":                 {ds(cluster.Filling, 10), "all", 10, true, ""},
		"first of a complete dataset": {ds(cluster.Sealed, 0), "all", 10, true, ""},
		"first while it scans":        {ds(cluster.Staging, 10), "manifest", 10, false, ""},
		"first without order":         {plain, "all", 10, true, "order=seed:S"},
	} {
		s := daemon.Status{Ready: true, Nodes: make([]daemon.NodeStatus, 2), Datasets: []daemon.DatasetStatus{c.ds}}
		done, err := settled(s, []string{"set"}, c.until, c.first)
		if done != c.done || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v, want %v, %q", name, done, err, c.done, c.err)
		}
		s.Nodes = make([]daemon.NodeStatus, 3) // one node has not reported
		if done, _ := settled(s, []string{"set"}, c.until, c.first); c.first > 0 && c.ds.Phase == cluster.Filling && c.err == "" && done {
			t.Errorf("%s: done before every node has reported", name)
		}
		want := `no dataset is named "other": the job has set`
		if c.ds.Phase == cluster.Removed {
			want = `no dataset is named "other": the job has no dataset`
		}
		if err := unknown(s, []string{"set", "other"}); err == nil || err.Error() != want {
			t.Errorf("%s: an unknown name: %v, want %s", name, err, want)
		}

	}
}

// TestSettledWithoutNames: a wait for all datasets fails as soon as one of the job's own was removed.
func TestSettledWithoutNames(t *testing.T) {
	s := daemon.Status{Ready: true, Datasets: []daemon.DatasetStatus{{Dataset: cluster.Dataset{ID: 1, Name: "set", Phase: cluster.Removed, Error: "why"}}}}
	for _, wanted := range [][]string{nil, {"set"}} {
		s.Wanted = wanted
		at := s
		at.Datasets = ofInterest(s, nil)
		if done, err := settled(at, nil, "all", 0); !done || (err == nil) != (wanted == nil) {
			t.Errorf("wanted %q: done %v, %v", wanted, done, err)
		}
	}
}

// TestGaveUp: after an interrupted wait the message says that stage-ins continue, and how to cancel the one waited for.
func TestGaveUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := daemon.Status{Datasets: []daemon.DatasetStatus{
		{Dataset: cluster.Dataset{ID: 1, Name: "old", Phase: cluster.Sealed}, Ready: true}, {Dataset: cluster.Dataset{ID: 2, Name: "set", Phase: cluster.Staging}},
	}}
	for name, names := range map[string][]string{"all": nil, "one": {"set"}} {
		if err := gaveUp(ctx, s, names); !strings.HasPrefix(err.Error(), "interrupted: ") || !strings.HasSuffix(err.Error(), "or bivouac cancel set to end one") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := gaveUp(ctx, daemon.Status{}, []string{"set"}); !strings.HasSuffix(err.Error(), "or bivouac cancel set to end one") { // no daemon answered
		t.Error(err)
	}
}
