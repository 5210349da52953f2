package daemon

import (
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// TestNewsWakesTheLeader: a report that says something new has the leader look at its
// duties, and one that does not leaves it in peace.
func TestNewsWakesTheLeader(t *testing.T) {
	var l leadership
	l.init()
	filling := fillsAt(0, "")
	filling.Filled[1] = dataset.FillReport{Progress: stagein.Progress{Bytes: 7}}
	for _, c := range []struct {
		name string
		r    report
		want bool
	}{
		{"the first one", report{Ready: true}, true},
		{"the same again", report{Ready: true}, false},
		{"a newer view", report{Ready: true, Version: 9}, false},
		{"a manifest", has("d"), true},
		{"the same manifest", has("d"), false},
		{"another manifest", has("e"), true},
		{"a fill has begun", fillsAt(0, ""), true},
		{"it gets on", filling, false},
		{"it is over", fillsAt(3, ""), true},
		{"trouble", fillsAt(3, "gone"), true},
		{"it leaves", report{Ready: true, Leaving: true}, true},
		{"its part is done", report{Ready: true, Leaving: true, Done: true}, true},
		{"of another share", report{Ready: true, Leaving: true, Done: true, Crew: 1}, true},
	} {
		l.hear(c.r, time.Unix(1, 0))
		got := false
		select {
		case <-l.news:
			got = true
		default:
		}
		if got != c.want {
			t.Errorf("%s: the leader is woken: %v, want %v", c.name, got, c.want)
		}
	}
}

// TestBehind: told of something new are the nodes that serve, are not in the group and
// do not have it.
func TestBehind(t *testing.T) {
	var l leadership
	l.init()
	v := cluster.View{Version: 5, Map: cluster.NewMap(1, []string{"n0", "n1", "n2", "n3", "n4", "n5", "n6"})}
	for i, version := range []uint64{4, 5, 4, 4, 5, 4} {
		id := metadata.NodeID(i)
		v.Map = v.Map.WithState(id, cluster.Up, "")
		l.hear(report{Node: id, Version: version}, time.Unix(1, 0))
	}
	v.Map = v.Map.WithState(5, cluster.Down, "")
	if got := l.behind(v, 7); !slices.Equal(got, []metadata.NodeID{3}) {
		t.Errorf("behind are %v, want node 3", got)
	}
}

// TestMoved: what is new of datasets is where they are, not how far.
func TestMoved(t *testing.T) {
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
		if got := moved(c.was, c.now); got != c.want {
			t.Errorf("%s: moved = %v, want %v", c.name, got, c.want)
		}
	}
}

// TestToldOfNews: a node that is not in the group reports at once when it hears of a
// view that it does not have.
func TestToldOfNews(t *testing.T) {
	d := &Daemon{job: &job.File{Hosts: []string{"n0", "n1", "n2", "n3"}, Self: 3}, kick: make(chan struct{}, 1)}
	d.view.Version = 5
	for version, want := range map[uint64]int{4: 0, 5: 0, 6: 1} {
		if r, err := d.onReport(t.Context(), 0, &report{Node: 0, Version: version}); err != nil || r.Known {
			t.Errorf("version %d: %+v, %v", version, r, err)
		}
		if got := len(d.kick); got != want {
			t.Errorf("version %d: %d reports are due, want %d", version, got, want)
		}
		for len(d.kick) > 0 {
			<-d.kick
		}
	}
	if _, err := d.onReport(t.Context(), 1, &report{Node: 0, Version: 9}); err != nil || len(d.kick) != 0 {
		t.Errorf("a report for another node: %v, %d reports are due", err, len(d.kick))
	}
}
