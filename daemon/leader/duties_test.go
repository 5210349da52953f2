package leader

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestDuties: the view and the reports determine what a leader proposes.
func TestDuties(t *testing.T) {
	t0 := time.Unix(1000, 0)
	const seen, silent = time.Second, time.Minute
	all := []cluster.State{cluster.Up, cluster.Up, cluster.Up}
	for _, c := range []struct {
		name     string
		states   []cluster.State
		datasets []cluster.Dataset
		reports  []Report        // from nodes 0, 1, …
		ago      []time.Duration // since each report; 0 means no report
		leads    time.Duration   // how long this node has been leader
		want     string
	}{
		{"no node has reported", []cluster.State{0, 0, 0}, nil, nil, nil, seen, ""},
		{"ready nodes come up", []cluster.State{0, 0, 0}, nil, []Report{{Ready: true}, {}, {Node: 2, Ready: true}},
			[]time.Duration{seen, seen, seen}, seen, "node 0 up; node 2 up"},
		{"a missing host is given up after the start timeout", []cluster.State{cluster.Up, 0, cluster.Up}, nil,
			[]Report{{Ready: true}, {}, {Ready: true}}, []time.Duration{seen, 0, seen}, 2 * time.Minute, "node 1 down"},
		{"silence", all, nil, []Report{{Ready: true}, {Ready: true}, {Ready: true}},
			[]time.Duration{seen, silent, seen}, time.Hour, "node 1 down"},
		{"a new leader does not judge at once", all, nil, []Report{{Ready: true}}, []time.Duration{seen}, seen, ""},
		{"back again", []cluster.State{cluster.Up, cluster.Down, cluster.Up}, nil, []Report{{Ready: true}, {Ready: true}, {Ready: true}},
			[]time.Duration{seen, seen, seen}, time.Hour, "node 1 up"},
		{"one leaves", all, nil, []Report{{Ready: true}, {Ready: true, Leaving: true}, {Ready: true}},
			[]time.Duration{seen, seen, seen}, time.Hour, "node 1 leaving"},
		{"all are done", []cluster.State{cluster.Leaving, cluster.Down, cluster.Leaving}, nil,
			[]Report{{Leaving: true, Done: true}, {}, {Leaving: true, Done: true}}, []time.Duration{seen, 0, seen}, time.Hour, "closing"},
		{"all are done, but one with the share it had before another was lost", []cluster.State{cluster.Leaving, cluster.Down, cluster.Leaving}, nil,
			[]Report{{Leaving: true, Done: true}, {}, {Leaving: true, Done: true, Copied: 1}}, []time.Duration{seen, 0, seen}, time.Hour, ""},
		{"back again to leave", []cluster.State{cluster.Leaving, cluster.Down, cluster.Leaving}, nil,
			[]Report{{Ready: true, Leaving: true}, {Ready: true, Leaving: true}, {Ready: true, Leaving: true}},
			[]time.Duration{seen, seen, seen}, time.Hour, "node 1 leaving"},
		{"not all are done", []cluster.State{cluster.Leaving, cluster.Up, cluster.Leaving}, nil,
			[]Report{{Leaving: true, Done: true}, {Ready: true}, {Leaving: true, Done: true}}, []time.Duration{seen, seen, seen}, time.Hour, ""},
		{"a manifest is everywhere", all, []cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d"}},
			[]Report{has("d"), has("d"), has("d")}, []time.Duration{seen, seen, seen}, time.Hour, "dataset 1 sealed"},
		{"a manifest is everywhere, the files are not", all, []cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d", Fill: true}},
			[]Report{has("d"), has("d"), has("d")}, []time.Duration{seen, seen, seen}, time.Hour, "dataset 1 filling"},
		{"the files are everywhere", all, []cluster.Dataset{{ID: 1, Phase: cluster.Filling, Digest: "d", Fill: true}},
			[]Report{fillsAt(3, ""), fillsAt(3, ""), fillsAt(3, "")}, []time.Duration{seen, seen, seen}, time.Hour, "dataset 1 sealed"},
		{"one still fetches", all, []cluster.Dataset{{ID: 1, Phase: cluster.Filling, Digest: "d", Fill: true}},
			[]Report{fillsAt(3, ""), fillsAt(0, ""), fillsAt(3, "")}, []time.Duration{seen, seen, seen}, time.Hour, ""},
		{"one has all of an older map", all, []cluster.Dataset{{ID: 1, Phase: cluster.Filling, Digest: "d", Fill: true}},
			[]Report{fillsAt(3, ""), fillsAt(2, ""), fillsAt(3, "")}, []time.Duration{seen, seen, seen}, time.Hour, ""},
		{"a file cannot be fetched", all, []cluster.Dataset{{ID: 1, Phase: cluster.Filling, Digest: "d", Fill: true}},
			[]Report{fillsAt(3, ""), fillsAt(0, "/src/x: gone"), fillsAt(3, "")}, []time.Duration{seen, seen, seen}, time.Hour,
			"dataset 1 failed: n1: /src/x: gone"},
		{"a manifest is not everywhere", all, []cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d"}},
			[]Report{has("d"), has("old"), has("d")}, []time.Duration{seen, seen, seen}, time.Hour, ""},
		{"a node does not show a dataset yet", all, []cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d", Fill: true}},
			[]Report{has("d"), {Ready: true, Manifests: has("d").Manifests, Hidden: []metadata.DatasetID{2, 1}}, has("d")},
			[]time.Duration{seen, seen, seen}, time.Hour, ""},
		{"a manifest that a node cannot take", all, []cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d"}},
			[]Report{has("d"), {Ready: true, Trouble: map[metadata.DatasetID]string{1: "disk full"}}, has("d")},
			[]time.Duration{seen, seen, seen}, time.Hour, "dataset 1 failed: manifest on n1: disk full"},
		{"a coordinator is lost", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Staging, Coordinator: 1}}, []Report{{Ready: true}, {}, {Ready: true}},
			[]time.Duration{seen, 0, seen}, time.Hour, "dataset 1 failed: n1, which coordinated the stage-in, does not answer: stage it in again"},
		{"a coordinator is lost while it scans", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Staging, Coordinator: 1, Spec: "{}"}}, []Report{{Ready: true}, {}, {Ready: true}},
			[]time.Duration{seen, 0, seen}, time.Hour, "dataset 1 staging"},
		{"a coordinator is lost when files are read", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Staging, Coordinator: 1, Spec: "{}", Reading: true}}, []Report{{Ready: true}, {}, {Ready: true}},
			[]time.Duration{seen, 0, seen}, time.Hour, "dataset 1 staging"},
		{"many coordinators were lost", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Staging, Coordinator: 1, Spec: "{}", Attempt: cluster.MaxAttempts}}, []Report{{Ready: true}, {}, {Ready: true}},
			[]time.Duration{seen, 0, seen}, time.Hour, "dataset 1 failed: n1, which coordinated the stage-in, does not answer: stage it in again"},
		{"a coordinator is lost with the only manifest", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d", Coordinator: 1}}, []Report{{Ready: true}, {}, {Ready: true}},
			[]time.Duration{seen, 0, seen}, time.Hour, "dataset 1 failed: n1 does not answer, and no other node has the manifest: stage it in again"},
		{"a coordinator is lost, a standby has the manifest", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d", Coordinator: 1}},
			[]Report{{Ready: true}, {}, {Ready: true, Standby: map[metadata.DatasetID]string{1: "d"}}},
			[]time.Duration{seen, 0, seen}, time.Hour, ""},
		{"a coordinator is lost, a standby has another manifest", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d", Coordinator: 1}},
			[]Report{{Ready: true}, {}, {Ready: true, Standby: map[metadata.DatasetID]string{1: "e"}}},
			[]time.Duration{seen, 0, seen}, time.Hour, "dataset 1 failed: n1 does not answer, and no other node has the manifest: stage it in again"},
		{"a coordinator is lost, another has the manifest", []cluster.State{cluster.Up, cluster.Down, cluster.Up},
			[]cluster.Dataset{{ID: 1, Phase: cluster.Publishing, Digest: "d", Coordinator: 1}}, []Report{has("d"), {}, {Ready: true}},
			[]time.Duration{seen, 0, seen}, time.Hour, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := New(Config{Node: nodetest.New(t, 0, 3), Job: &job.File{}, Every: 250 * time.Millisecond, Down: 15 * time.Second})
			v := cluster.View{Map: cluster.NewMap(1, []string{"n0", "n1", "n2"}), Datasets: c.datasets}
			for i, s := range c.states {
				if s == cluster.Down || s == cluster.Leaving {
					v.Map = v.Map.WithState(metadata.NodeID(i), cluster.Up, "")
				}
				v.Map = v.Map.WithState(metadata.NodeID(i), s, "")
			}
			heardOf := make(map[metadata.NodeID]heard)
			for i, r := range c.reports {
				if c.ago[i] > 0 {
					r.Node = metadata.NodeID(i)
					if r.Copied == 0 {
						r.Copied = Participants(v.Map)
					}
					heardOf[r.Node] = heard{r, t0.Add(-c.ago[i])}
				}
			}
			var got []string
			for _, cmd := range l.duties(v, t0.Add(-c.leads), heardOf, t0) {
				switch cmd.Kind {
				case "nodes":
					for _, n := range cmd.Nodes {
						got = append(got, fmt.Sprintf("node %d %v", n.ID, n.State))
					}
				case "dataset-set":
					got = append(got, strings.TrimSuffix(fmt.Sprintf("dataset %d %v: %s", cmd.Dataset.ID, cmd.Dataset.Phase, cmd.Dataset.Error), ": "))
				default:
					got = append(got, cmd.Kind)
				}
			}
			if s := strings.Join(got, "; "); s != c.want {
				t.Errorf("duties = %q, want %q", s, c.want)
			}
		})
	}
}

// TestMissingIsSummed: a dataset is sealed even if the source did not provide some files, and records how many.
func TestMissingIsSummed(t *testing.T) {
	v := cluster.View{Map: cluster.NewMap(1, []string{"n0", "n1"}), Datasets: []cluster.Dataset{{ID: 1, Phase: cluster.Filling}}}
	v.Map = v.Map.WithState(0, cluster.Up, "").WithState(1, cluster.Up, "")
	reports := make(map[metadata.NodeID]heard)
	for i := range 2 {
		reports[metadata.NodeID(i)] = heard{Report: Report{Filled: map[metadata.DatasetID]dataset.FillReport{
			1: {Complete: v.Map.Epoch, Missing: 2, Lack: "it was changed"}}}}
	}
	cs := datasetDuties(v, reports, 7)
	if len(cs) != 1 || cs[0].Dataset.Phase != cluster.Sealed || cs[0].Dataset.Missing != 4 {
		t.Errorf("duties are %+v, want a sealed dataset with 4 files missing", cs)
	}
}

func fillsAt(whole metadata.Epoch, trouble string) Report {
	return Report{Ready: true, Filled: map[metadata.DatasetID]dataset.FillReport{1: {Complete: whole, Error: trouble}}}
}

func has(digest string) Report {
	return Report{Ready: true, Manifests: map[metadata.DatasetID]string{1: digest}}
}

// TestWhoNotifies: exactly one node notifies; the node with the job's output is preferred.
func TestWhoNotifies(t *testing.T) {
	t.Parallel()
	m := cluster.NewMap(1, []string{"n0", "n1", "n2"})
	for id, s := range map[metadata.NodeID]cluster.State{0: cluster.Down, 1: cluster.Up, 2: cluster.Leaving} {
		m = m.WithState(id, cluster.Up, "").WithState(id, s, "")
	}
	for _, c := range []struct {
		name   string
		output []bool // by node; a node without an entry has not reported
		want   []bool
	}{
		{"none has it", []bool{false, false, false}, []bool{false, true, false}},
		{"one has it", []bool{false, false, true}, []bool{false, false, true}},
		{"one that does not serve had it", []bool{true, false, false}, []bool{true, true, false}},
		{"one has not reported", []bool{false, false}, []bool{false, false}},
	} {
		l := New(Config{})
		for i, has := range c.output {
			l.Record(Report{Node: metadata.NodeID(i), HasOutput: has}, time.Unix(1, 0))
		}
		for i, want := range c.want {
			if got := l.Notifies(m, &Report{Node: metadata.NodeID(i), HasOutput: c.output[i]}); got != want {
				t.Errorf("%s: node %d notifies: %v, want %v", c.name, i, got, want)
			}
		}
	}
}
