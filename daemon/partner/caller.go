package partner

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// To returns the caller of a node, or, for ops of a home, of the node that serves that home.
func (p *Partner) To(id metadata.NodeID) rpc.Caller { return &caller{p, p.node.Self(), id} }

// caller calls to on behalf of from: this node, or a home that it stands in for.
type caller struct {
	p        *Partner
	from, to metadata.NodeID
}

// Do makes one call.
func (c *caller) Do(ctx context.Context, call *rpc.Call) error {
	self, m, at := c.p.node.Self(), c.p.node.View().Map, c.to
	if call.Op.ForHome() || call.Op == wire.OpCachedReply {
		at, _ = m.HomeAt(c.to)
	}
	switch {
	case call.Op == wire.OpCachedReply && at == self:
		return nil // wire.Unknown: the call was lost with its node
	case call.Op == wire.OpCachedReply: // goes to the node, whatever the lost call was
		return c.p.cfg.Peer(at).Do(ctx, call)
	case at == self:
		h, err := c.p.handler(ctx, c.to, call.Op)
		if err != nil {
			return err
		}
		return rpc.Local(ctx, func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
			r.StandIn = c.from != self
			return h(ctx, r, resp)
		}, c.from, m.Epoch, call)
	case at == c.to && c.from == self:
		return c.p.cfg.Peer(at).Do(ctx, call)
	}
	in := rpc.Call{Op: call.Op.StandIn(), Body: &wire.StandInReq{From: c.from, To: c.to, Op: call.Op, Request: call.Body}, Reply: call.Reply}
	err := c.p.cfg.Peer(at).Do(ctx, &in)
	call.ErrBody, call.N = in.ErrBody, 0
	return err
}

// Client is To for this node's client: it repeats calls while the node, or the home, may answer again.
func (p *Partner) Client(id metadata.NodeID) rpc.Caller {
	down := func(at metadata.NodeID, ok bool) error {
		n, _ := p.node.View().Map.Node(at)
		if !ok || n.State == cluster.Down {
			return fmt.Errorf("node %s is down: %w", n.Host, syscall.EHOSTDOWN)
		}
		return nil
	}
	return &clientCaller{
		home: rpc.NewRetrier(p.To(id), func() error { return down(p.node.View().Map.HomeAt(id)) }),
		node: rpc.NewRetrier(p.cfg.Peer(id), func() error { return down(id, true) }),
	}
}

// clientCaller calls a home, or its node, depending on the op.
type clientCaller struct{ home, node rpc.Caller }

// Do makes a call.
func (c *clientCaller) Do(ctx context.Context, call *rpc.Call) error {
	if call.Op.ForHome() {
		return c.home.Do(ctx, call)
	}
	return c.node.Do(ctx, call)
}
