package leader

import (
	"context"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/daemon/rebuild"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// TestReportsOfEarlierRuns: a report delayed until after its node restarted confirms no copies.
func TestReportsOfEarlierRuns(t *testing.T) {
	l := New(Config{Job: &job.File{Hosts: make([]string, 2)}})
	m := cluster.NewMap(1, make([]string, 2)).WithState(0, cluster.Up, "").WithState(1, cluster.Up, "")
	report := func(run metadata.Run, made metadata.Epoch, want bool, when string) {
		t.Helper()
		for id := range metadata.NodeID(2) {
			r := Report{Node: id, Run: 10, Load: Load{Rebuilt: rebuild.Mark{Epoch: m.Changed()}}}
			if id == 1 {
				r.Run, r.Rebuilt.Epoch = run, made
			}
			l.Record(r, time.Unix(1000, 0))
		}
		if got := l.restore(m); got != want {
			t.Errorf("%s: the copies count: %v, want %v", when, got, want)
		}
	}
	report(11, m.Changed()-1, false, "before they are made")
	report(11, m.Changed(), true, "when they are")
	report(12, 0, false, "after a restart")
	report(11, m.Changed(), false, "by a report from before it")
	report(11, m.Changed(), false, "by another one")
	report(12, m.Changed(), true, "when they are made again")
}

// deafGroup agrees to no proposal. Its Confirm fails while lost is set, and otherwise takes some time.
type deafGroup struct {
	lost     bool
	takes    time.Duration
	view     cluster.View
	proposed int
}

func (g *deafGroup) IsLeader() bool { return true }

func (g *deafGroup) Term() uint64 { return 1 }

func (g *deafGroup) View() cluster.View { return g.view }

func (g *deafGroup) Propose(context.Context, raftstore.Command) (cluster.View, error) {
	g.proposed++
	return cluster.View{}, syscall.ETIMEDOUT
}

func (g *deafGroup) Confirm() error {
	if g.lost {
		return syscall.ETIMEDOUT
	}
	time.Sleep(g.takes)
	return nil
}

// TestStoppedInConfirm: a leader that is stopped while it confirms that its view is current does not give up nodes
// whose reports it could not receive.
func TestStoppedInConfirm(t *testing.T) {
	const down = 15 * time.Second
	n := nodetest.New(t, 0, 2)
	synctest.Test(t, func(t *testing.T) {
		l := New(Config{Job: &job.File{Hosts: make([]string, 2)}, Node: n, Every: time.Second, Down: down, SetView: func(cluster.View) {}})
		m := cluster.NewMap(1, []string{"n0", "n1"}).WithState(0, cluster.Up, "").WithState(1, cluster.Up, "")
		g := &deafGroup{lost: true, takes: 2 * down, view: cluster.View{Map: m}}
		for look := range 200 {
			at := time.Now()
			for id := range metadata.NodeID(2) {
				l.Record(Report{Node: id, Ready: true}, at)
			}
			since, reports := l.memory(true, 1, at)
			g.lost = look < 100 // it has led for longer than a node may be silent
			l.act(t.Context(), g, since, reports, at)
			time.Sleep(lookEvery)
		}
		if g.proposed > 0 {
			t.Errorf("%d proposals about nodes that report", g.proposed)
		}
	})
}

// TestLeases: a report renews a node's lease only while no pending proposal, by an earlier leader or by this one, can
// give the node up. A node that reports while that is undecided is not given up.
func TestLeases(t *testing.T) {
	l, g := New(Config{Job: &job.File{Hosts: make([]string, 7)}}), &deafGroup{lost: true}
	at := time.Unix(1000, 0)
	report := func(want bool, when string) {
		t.Helper()
		at = at.Add(time.Second)
		if got := l.Record(Report{Node: 1}, at); got != want {
			t.Errorf("%s: leased is %v, want %v", when, got, want)
		}
	}
	down := func() []cluster.Change {
		return []cluster.Change{{ID: 1, State: cluster.Down}, {ID: 2, State: cluster.Up}}
	}
	report(false, "while another node leads")
	l.memory(true, 1, at)
	l.confirm(g)
	report(false, "before earlier proposals are known")
	g.lost = false
	l.confirm(g)
	report(true, "in normal use")

	_, reports := l.memory(true, 1, at)
	report(true, "between the look at the reports and the proposal")
	if got := l.doom(down(), reports); len(got) != 1 || got[0].ID != 2 {
		t.Errorf("proposed: %v, want node 2 alone", got)
	}
	_, reports = l.memory(true, 1, at)
	if got := l.doom(down(), reports); len(got) != 2 {
		t.Errorf("proposed: %v", got)
	}
	report(false, "while the proposal is decided")
	g.lost = true
	l.confirm(g)
	report(false, "while its outcome is unknown")
	g.lost = false
	l.confirm(g)
	report(true, "when it is known")
	l.memory(false, 1, at)
	l.confirm(g)
	report(false, "when another node leads again")
	if l.since != (time.Time{}) || l.doomed[metadata.NodeID(1)] {
		t.Error("it remembers its time as leader")
	}
}
