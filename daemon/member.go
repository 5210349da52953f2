package daemon

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/member"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

var _ node.Node = (*Daemon)(nil)

// newMember returns this node's membership in the control plane.
func (d *Daemon) newMember() *member.Member {
	return member.New(member.Config{
		Ctx: d.ctx, Node: d, Job: d.job, Every: d.cfg.Timing.Report, Down: d.cfg.Timing.Down, Started: d.phases.times().Started.Time(),
		Group: raftstore.Config{Dir: d.dir("raft"), Dial: d.dialMember, Log: d.log.WithField("part", "raft")},
		Fill:  d.fillReport, Heard: d.heard, StageIn: d.beginStageIn,
		Leased:     func(sent time.Time) { d.copies.Lease.Renew(sent, d.cfg.Timing.Down) },
		Disconnect: d.disconnect,
	})
}

// WaitUp waits until the job's map is complete. Its error names the hosts that did not answer within the start timeout.
func (d *Daemon) WaitUp(ctx context.Context) error {
	if err := d.Member.WaitUp(ctx); err != nil {
		return err
	}
	d.phases.setUp(now())
	return nil
}

// Self implements node.Caller.
func (d *Daemon) Self() metadata.NodeID { return d.job.Self }

// To implements node.Caller.
func (d *Daemon) To(id metadata.NodeID) rpc.Caller { return d.partner.To(id) }

// Log implements node.Process.
func (d *Daemon) Log() *logrus.Entry { return d.log }

// Call implements node.Caller.
func (d *Daemon) Call(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	return node.CallJSON(ctx, d.To(id), op, q, reply)
}
