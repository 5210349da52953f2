package daemon

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

var _ node.Node = (*Daemon)(nil)

// Self is node.Caller.
func (d *Daemon) Self() metadata.NodeID { return d.job.Self }

// To is node.Caller.
func (d *Daemon) To(id metadata.NodeID) rpc.Caller { return d.partner.To(id) }

// Log is node.Process.
func (d *Daemon) Log() *logrus.Entry { return d.log }

// Call is node.Caller.
func (d *Daemon) Call(ctx context.Context, id metadata.NodeID, op wire.Op, q, reply any) error {
	return node.CallJSON(ctx, d.To(id), op, q, reply)
}
