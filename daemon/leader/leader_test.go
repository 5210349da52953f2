package leader

import (
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// TestReportsWakeTheLeader: only a report with a relevant change wakes the leader.
func TestReportsWakeTheLeader(t *testing.T) {
	l := New(Config{Job: &job.File{Hosts: make([]string, 7)}})
	filling := fillsAt(0, "")
	filling.Filled[1] = dataset.FillReport{Progress: stagein.Progress{Bytes: 7}}
	for _, c := range []struct {
		name string
		r    Report
		want bool
	}{
		{"the first one", Report{Ready: true}, true},
		{"the same again", Report{Ready: true}, false},
		{"a newer view", Report{Ready: true, Version: 9}, false},
		{"a manifest", has("d"), true},
		{"the same manifest", has("d"), false},
		{"another manifest", has("e"), true},
		{"a fill has begun", fillsAt(0, ""), true},
		{"it gets on", filling, false},
		{"it is over", fillsAt(3, ""), true},
		{"trouble", fillsAt(3, "gone"), true},
		{"it leaves", Report{Ready: true, Leaving: true}, true},
		{"its part is done", Report{Ready: true, Leaving: true, Done: true}, true},
		{"of another share", Report{Ready: true, Leaving: true, Done: true, Copied: 1}, true},
	} {
		l.Record(c.r, time.Unix(1, 0))
		got := false
		select {
		case <-l.wake:
			got = true
		default:
		}
		if got != c.want {
			t.Errorf("%s: the leader is woken: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestMarks: the marks in the nodes' reports get a newer version when, and only when, they change; the version is also
// newer than that of an earlier leader.
func TestMarks(t *testing.T) {
	l := New(Config{Job: &job.File{Hosts: make([]string, 7)}})
	if v, all := l.Marks(0); v != 0 || all != nil {
		t.Errorf("without replicas: version %d, %v", v, all)
	}
	report := func(node metadata.NodeID, below uint64) {
		r := Report{Node: node, Replicas: map[metadata.DatasetID]replicas.Mark{3: {Node: node, Below: below}}}
		l.Record(r, time.Unix(1, 0))
	}
	report(1, 10)
	v, all := l.Marks(0)
	if v < uint64(time.Second) || len(all[3]) != 1 || all[3][0].Below != 10 {
		t.Errorf("version %d, %v", v, all)
	}
	if again, all := l.Marks(v); again != 0 || all != nil {
		t.Errorf("marks for a node that has this version: version %d, %v", again, all)
	}
	report(1, 10)
	l.Record(Report{Node: 2}, time.Unix(1, 0))
	if again, _ := l.Marks(v); again != 0 {
		t.Errorf("version %d without a change", again)
	}
	report(2, 5)
	report(1, 20)
	newer, all := l.Marks(v)
	if newer <= v || len(all[3]) != 2 || all[3][0].Below+all[3][1].Below != 25 {
		t.Errorf("version %d after %d: %v", newer, v, all)
	}
	// A node that reported between an election and the next look has only some of the marks.
	at := time.Unix(2, 0)
	l.cfg.Down = 15 * time.Second
	l.memory(true, 5, at)
	l.memory(false, 5, at.Add(lookEvery))
	report(2, 6)
	part, _ := l.Marks(newer)
	l.memory(true, 6, at.Add(2*lookEvery))
	if v, all := l.Marks(part); v <= part || len(all[3]) != 2 || all[3][0].Below+all[3][1].Below != 26 {
		t.Errorf("elected again: version %d after %d: %v", v, part, all)
	}
}

// TestOutdated: a change is broadcast to the nodes that serve, are outside the group and lack the change.
func TestOutdated(t *testing.T) {
	l := New(Config{Job: &job.File{Hosts: make([]string, 7)}})
	v := cluster.View{Version: 5, Map: cluster.NewMap(1, []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6"})}
	for i, version := range []uint64{4, 5, 4, 4, 5, 4} {
		id := metadata.NodeID(i)
		v.Map = v.Map.WithState(id, cluster.Up, "")
		l.Record(Report{Node: id, Version: version}, time.Unix(1, 0))
	}
	v.Map = v.Map.WithState(5, cluster.Down, "")
	if got := l.outdated(v); !slices.Equal(got, []metadata.NodeID{3}) {
		t.Errorf("outdated are %v, want node 3", got)
	}
}

// TestAdvanced: only the phase of a dataset counts, not its progress.
func TestAdvanced(t *testing.T) {
	a := cluster.Dataset{ID: 1, Phase: cluster.Publishing, Digest: "d"}
	b, more := a, a
	b.Phase = cluster.Filling
	more.SourceBytes = 7
	for _, c := range []struct {
		name     string
		was, now []cluster.Dataset
		want     bool
	}{
		{"nothing", nil, nil, false}, {"the same", []cluster.Dataset{a}, []cluster.Dataset{a}, false},
		{"a new one", nil, []cluster.Dataset{a}, true}, {"another phase", []cluster.Dataset{a}, []cluster.Dataset{b}, true},
		{"a count", []cluster.Dataset{a}, []cluster.Dataset{more}, false}, {"it has gone", []cluster.Dataset{a}, nil, true},
	} {
		if got := advanced(c.was, c.now); got != c.want {
			t.Errorf("%s: advanced = %v, want %v", c.name, got, c.want)
		}
	}
}

// TestStoppedLeader: a leader that was stopped for longer than a node may be silent gives up no node when it continues,
// since the reports of that time are waiting in its sockets. A node that stays silent is given up after the usual time.
func TestStoppedLeader(t *testing.T) {
	const down = 15 * time.Second
	n := nodetest.New(t, 0, 2)
	l := New(Config{Job: &job.File{Hosts: make([]string, 2)}, Node: n, Every: time.Second, Down: down})
	v := cluster.View{Map: cluster.NewMap(1, []string{"n0", "n1"}).WithState(0, cluster.Up, "").WithState(1, cluster.Up, "")}
	at := time.Unix(1000, 0)
	look := func(after time.Duration, reports bool) (lost int) {
		for end := at.Add(after); at.Before(end); {
			at = at.Add(min(after, lookEvery))
			l.Record(Report{Node: 0, Ready: true}, at)
			if reports {
				l.Record(Report{Node: 1, Ready: true}, at)
			}
			since, heard := l.memory(true, 1, at)
			for _, c := range l.nodeDuties(v, since, heard, at) {
				lost += len(c.Nodes)
			}
		}
		return lost
	}
	if lost := look(2*down, true); lost != 0 {
		t.Errorf("%d nodes are given up that report", lost)
	}
	at = at.Add(2 * down)
	if lost := look(down/2, false); lost != 0 {
		t.Errorf("%d nodes are given up for the silence while the leader was stopped", lost)
	}
	if lost := look(down, false); lost == 0 {
		t.Error("a silent node is not given up")
	}
}

// TestElectedAnew: a leader that lost the lead briefly, to no other node, gives up a silent node as if it had led all
// the time. If another node may have led, or it took long, every node gets the full silence timeout. In any case,
// leases begin only once the outcome of its earlier proposals is known.
func TestElectedAnew(t *testing.T) {
	const down = 15 * time.Second
	for _, c := range []struct {
		name string
		term uint64
		gap  time.Duration
		want time.Duration // measured from the last report
	}{
		{"at once", 6, time.Second, time.Second + down}, {"between two looks", 6, 0, down}, {"after another leader", 7, time.Second, 10*time.Second + time.Second + down},
		{"after a long time", 6, down, 10*time.Second + 2*down},
	} {
		n := nodetest.New(t, 0, 2)
		l := New(Config{Job: &job.File{Hosts: make([]string, 2)}, Node: n, Every: time.Second, Down: down})
		v := cluster.View{Map: cluster.NewMap(1, []string{"n0", "n1"}).WithState(0, cluster.Up, "").WithState(1, cluster.Up, "")}
		at := time.Unix(1000, 0)
		look := func(term uint64) (lost int) {
			at = at.Add(lookEvery)
			l.Record(Report{Node: 0, Ready: true}, at)
			since, heard := l.memory(true, term, at)
			for _, c := range l.nodeDuties(v, since, heard, at) {
				lost += len(c.Nodes)
			}
			return lost
		}
		for range 2 * down / lookEvery {
			l.Record(Report{Node: 1, Ready: true}, at)
			look(5)
			l.confirm(&deafGroup{})
		}
		last := at.Add(-lookEvery)
		for range 10 * time.Second / lookEvery {
			look(5)
		}
		if c.gap > 0 {
			l.memory(false, 5, at)
			at = at.Add(c.gap)
		}
		lost := look(c.term)
		if l.Record(Report{Node: 0, Ready: true}, at) {
			t.Errorf("%s: a report has renewed a lease before earlier proposals are known", c.name)
		}
		for ; lost == 0 && at.Sub(last) < 4*down; lost = look(c.term) {
		}
		if got := at.Sub(last); got < c.want || got > c.want+3*lookEvery {
			t.Errorf("%s: given up after a silence of %v, want %v", c.name, got, c.want)
		}
	}
}
