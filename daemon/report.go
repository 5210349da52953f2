package daemon

import (
	"context"
	"maps"
	"time"

	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/member"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// newMember makes this node's membership in the control plane.
func (d *Daemon) newMember() *member.Member {
	return member.New(member.Config{
		Ctx: d.ctx, Node: d, Job: d.job, Every: d.cfg.Timing.Report, Down: d.cfg.Timing.Down, Started: d.phases.started(),
		Group: raftstore.Config{Dir: d.dir("raft"), Dial: d.dialMember, Log: d.log.WithField("part", "raft")},
		Fill:  d.fillReport, Heard: d.heard, StageIn: d.beginStageIn,
		Leased:     func(sent time.Time) { d.copies.lease.Renew(sent, d.cfg.Timing.Down) },
		Disconnect: d.disconnect,
	})
}

// WaitUp waits until the job's map is complete. The error names the hosts that did not
// answer within the start timeout.
func (d *Daemon) WaitUp(ctx context.Context) error {
	if err := d.Member.WaitUp(ctx); err != nil {
		return err
	}
	d.phases.setUp(now())
	return nil
}

// fillReport says what the leader does not know of this node.
func (d *Daemon) fillReport(r *leader.Report) {
	r.Ready = d.ready.Load()
	r.Leaving, r.Done, r.Copied = d.leave.state()
	r.Manifests, r.Trouble = d.datasets.Tables.Report()
	r.Standby = d.stager.Standby()
	r.Filled = d.datasets.Fills.Report()
	r.Replicas, r.MarksVersion = d.datasets.Replicas.Report(), d.datasets.Replicas.Seen()
	r.Out = d.out.Failures()
	r.HasOutput = d.notifier.HasOutput()
	r.Space, _ = d.data.Space(d.ctx) // zeros if the store does not know
	r.Traffic, r.Rates = d.meter.read(time.Now())
	if a := d.addrs(d.job.Self); len(a) > 0 {
		r.Addr = a[0]
	}
}

// heard takes what a leader's reply says beside the view.
func (d *Daemon) heard(r member.Reply) {
	d.warn.answered(r.Notifies)
	d.notifier.Hear(r.Out)
	if r.MarksVersion > 0 {
		d.datasets.Replicas.Hear(r.MarksVersion, r.Marks)
	}
}

func (d *Daemon) controlHandlers() map[wire.Op]rpc.Handler {
	h := map[wire.Op]rpc.Handler{wire.OpStatus: node.HandleJSON(d.onStatus)}
	maps.Copy(h, d.Member.Handlers())
	maps.Copy(h, d.tasks.Handlers())
	maps.Copy(h, d.datasets.Fills.Handlers())
	maps.Copy(h, d.datasets.Verifier.Handlers())
	maps.Copy(h, d.stager.Handlers())
	return h
}
