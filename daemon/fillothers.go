package daemon

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// others is the fills of a dataset on the other nodes.
type others struct {
	d  *Daemon
	ds metadata.DatasetID
}

var _ stagein.Others = others{}

type claimReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	stagein.Claim
}

type claimReply struct {
	Granted []bool `json:"granted"`
}

type landingReq struct {
	Dataset metadata.DatasetID `json:"dataset"`
	stagein.Landing
}

// Claim implements stagein.Others.
func (o others) Claim(ctx context.Context, to metadata.NodeID, c stagein.Claim) ([]bool, error) {
	var r claimReply
	err := o.insist(ctx, to, wire.OpFillOffer, claimReq{o.ds, c}, &r)
	return r.Granted, err
}

// Put implements stagein.Others.
func (o others) Put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	return target{d: o.d}.Put(ctx, to, ino, p, off)
}

// Landed implements stagein.Others.
func (o others) Landed(ctx context.Context, to metadata.NodeID, l stagein.Landing) error {
	return o.insist(ctx, to, wire.OpFillComplete, landingReq{o.ds, l}, nil)
}

// insist makes a call again, also if the node does not know the dataset yet.
func (o others) insist(ctx context.Context, to metadata.NodeID, op wire.Op, q, reply any) error {
	mayPass := func(err error) bool { return node.Unreachable(err) || errors.Is(err, syscall.EAGAIN) }
	return o.d.Insist(ctx, to, 2*o.d.cfg.Timing.Down+waitTime, mayPass, func() error {
		return o.d.Call(ctx, to, op, q, reply)
	})
}

func (d *Daemon) onFillClaim(ctx context.Context, peer metadata.NodeID, q *claimReq) (claimReply, error) {
	f, err := d.fillFor(ctx, q.Dataset, peer, q.By)
	if err != nil {
		return claimReply{}, err
	}
	return claimReply{f.Claim(q.Claim)}, nil
}

func (d *Daemon) onFillLanded(ctx context.Context, peer metadata.NodeID, q *landingReq) (struct{}, error) {
	f, err := d.fillFor(ctx, q.Dataset, peer, q.By)
	if err != nil {
		return struct{}{}, err
	}
	return struct{}{}, f.Landed(q.Landing)
}

// fillFor is the fill of a dataset, for a node that brings something to it. This
// node may know the dataset later than that one: then it is EAGAIN after a time.
func (d *Daemon) fillFor(ctx context.Context, id metadata.DatasetID, peer, by metadata.NodeID) (*stagein.Fill, error) {
	if peer != by {
		return nil, fmt.Errorf("node %d speaks for node %d: %w", peer, by, syscall.EPERM)
	}
	late := time.NewTimer(waitTime)
	defer late.Stop()
	for {
		f, begun := d.fill.get(id)
		if f != nil {
			return f, nil
		}
		v, changed := d.Watch()
		if ds, known := v.Dataset(id); known && ds.Phase == cluster.Failed {
			return nil, fmt.Errorf("dataset %s has failed: %w", ds.Name, syscall.ESTALE)
		}
		select {
		case <-begun:
		case <-changed:
		case <-late.C:
			return nil, fmt.Errorf("dataset %d is not known here yet: %w", id, syscall.EAGAIN)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
