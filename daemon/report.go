package daemon

import (
	"time"

	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/member"
)

// fillReport adds the state of this node that the leader does not know.
func (d *Daemon) fillReport(r *leader.Report) {
	r.Run, r.Ready, r.Switch = d.run, d.ready.Load(), d.job.Switch
	r.Leaving, r.Done, r.Copied = d.leave.state()
	r.Manifests, r.Trouble = d.datasets.Tables.Report()
	r.Hidden = d.datasets.Follower.Hidden()
	r.Standby = d.stager.Standby()
	r.Filled = d.datasets.Fills.Report()
	r.Replicas, r.MarksVersion = d.datasets.Replicas.Report(), d.datasets.Replicas.Seen()
	r.Out = d.out.Failures()
	r.HasOutput = d.notifier.HasOutput()
	r.Space, _ = d.data.Space(d.ctx) // zeros if the store does not know
	r.Rebuilt = d.rebuild.Mark()
	r.Traffic, r.Rates = d.meter.read(time.Now())
	if a := d.addrs(d.job.Self); len(a) > 0 {
		r.Addr = a[0]
	}
}

// heard applies everything in a leader's reply except the view.
func (d *Daemon) heard(r member.Reply) {
	d.warn.answered(r.Notifies)
	d.notifier.Hear(r.Out)
	if r.MarksVersion > 0 {
		d.datasets.Replicas.Hear(r.MarksVersion, r.Marks)
	}
}
