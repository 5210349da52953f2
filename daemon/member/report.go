package member

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Reply answers a report. Leader is the member to which the next report goes.
type Reply struct {
	Leader metadata.NodeID `json:"leader"`
	Known  bool            `json:"known"`
	Delta  *cluster.Delta  `json:"delta,omitempty"` // changes to the view that the member has, if there is a newer one
	// Out lists the stage-out failures of all nodes, for the node that notifies the user.
	Out []stageout.Failures `json:"out,omitempty"`
	// Marks is the replica progress of all nodes, if it has changed since the report's MarksVersion.
	Marks        map[metadata.DatasetID][]replicas.Mark `json:"marks,omitempty"`
	MarksVersion uint64                                 `json:"marks_version,omitempty"`
	// Leased: the leader has recorded the report (copies.Lease).
	Leased bool `json:"leased,omitempty"`
	// Notifies: the caller is the node that writes to the job's output.
	Notifies bool `json:"notifies,omitempty"`
}

// report returns this node's report.
func (m *Member) report() leader.Report {
	r := leader.Report{Node: m.cfg.Job.Self, Version: m.View().Version}
	m.cfg.Fill(&r)
	return r
}

// searchPause is the pause between two attempts to find the leader: an election takes longer.
const searchPause = 250 * time.Millisecond

// Run reports to the leader, and receives the view from it, until ctx ends.
func (m *Member) Run(ctx context.Context) {
	t := time.NewTimer(0)
	defer t.Stop()
	for next := 0; ; {
		pause := m.cfg.Every
		if !m.Report(ctx) { // ask the next member for the leader
			all := leader.Members(len(m.cfg.Job.Hosts))
			next = (next + 1) % len(all)
			m.setLeader(all[next])
			pause = min(pause, searchPause)
		}
		t.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-m.kick:
		}
	}
}

// Report reports once. It reports whether the member that it called knows the leader.
func (m *Member) Report(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, max(2*time.Second, min(4*m.cfg.Every, m.cfg.Down/4)))
	defer cancel()
	to := m.Leader()
	var r Reply
	var err error
	sent := time.Now()
	if to == m.cfg.Job.Self {
		r, err = m.onReport(ctx, to, new(m.report()))
	} else {
		err = m.cfg.Node.Call(ctx, to, wire.OpReport, m.report(), &r)
	}
	if err != nil || !r.Known {
		return false
	}
	m.setLeader(r.Leader)
	m.cfg.Heard(r)
	if !m.take(ctx, r.Delta) {
		return false
	}
	if r.Leased {
		m.cfg.Leased(sent)
	}
	return true
}

// Refresh waits until this node knows everything that the leader knew at the time of the call, such as a dataset that
// another node registered just before.
func (m *Member) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	t := time.NewTicker(m.cfg.Every)
	defer t.Stop()
	for {
		asked := m.Leader()
		if m.Report(ctx) && m.Leader() == asked {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no leader answers: %w", syscall.ETIMEDOUT)
		case <-m.cfg.Ctx.Done():
			return fmt.Errorf("the daemon ends: %w", syscall.ESHUTDOWN)
		case <-t.C: // Run looks for the leader
		}
	}
}

// onReport is a member's answer to a report. On a node outside the group, the report is the leader's broadcast of a
// change: the node reports, and receives the new view.
func (m *Member) onReport(_ context.Context, peer metadata.NodeID, r *leader.Report) (Reply, error) {
	var reply Reply
	if peer != r.Node || int(peer) >= len(m.cfg.Job.Hosts) {
		return reply, nil
	}
	g := m.raftGroup()
	if g == nil {
		if r.Version > m.View().Version {
			m.Nudge()
		}
		return reply, nil
	}
	reply.Leader, reply.Known = g.Leader()
	if g.IsLeader() {
		reply.Leased = m.lead.Record(*r, time.Now())
		if now := g.View().Map; m.lead.Notifies(now, r) {
			reply.Out, reply.Notifies = m.lead.OutFailures(now), true
		}
		reply.MarksVersion, reply.Marks = m.lead.Marks(r.MarksVersion)
	}
	if v := g.View(); v.Version > r.Version {
		reply.Delta = new(m.history.Delta(r.Version, v))
	}
	return reply, nil
}
