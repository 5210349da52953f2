package dataset

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// peers calls the fills of a dataset on the other nodes, for work stealing.
type peers struct {
	f  *Fills
	ds metadata.DatasetID
}

var _ fill.Peers = peers{}

type offerRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
	fill.Offer
}

type offerReply struct {
	Granted []bool `json:"granted"`
}

type completionRequest struct {
	Dataset metadata.DatasetID `json:"dataset"`
	fill.Completion
}

// Offer implements fill.Peers.
func (p peers) Offer(ctx context.Context, to metadata.NodeID, c fill.Offer) ([]bool, error) {
	var r offerReply
	err := p.call(ctx, to, wire.OpFillOffer, offerRequest{p.ds, c}, &r)
	return r.Granted, err
}

// Put implements fill.Peers.
func (p peers) Put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, b []byte, off int64) error {
	return p.f.cfg.Stores.Since(0).Put(ctx, to, ino, b, off)
}

// PutAll implements fill.Peers.
func (p peers) PutAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) ([]error, error) {
	return p.f.cfg.Stores.Since(0).PutAll(ctx, to, ps)
}

// Complete implements fill.Peers.
func (p peers) Complete(ctx context.Context, to metadata.NodeID, l fill.Completion) error {
	return p.call(ctx, to, wire.OpFillComplete, completionRequest{p.ds, l}, nil)
}

// call makes a call and repeats it also while the node does not know the dataset yet.
func (p peers) call(ctx context.Context, to metadata.NodeID, op wire.Op, q, reply any) error {
	retry := func(err error) bool { return node.Unreachable(err) || errors.Is(err, syscall.EAGAIN) }
	return p.f.cfg.Node.Insist(ctx, to, p.f.cfg.Stores.patience+waitTime, retry, func() error {
		return p.f.cfg.Node.Call(ctx, to, op, q, reply)
	})
}

// Handlers returns the handlers of calls from other nodes' fills.
func (f *Fills) Handlers() node.Handlers {
	return node.Handlers{
		wire.OpFillOffer:    node.HandleJSON(f.onOffer),
		wire.OpFillComplete: node.HandleJSON(f.onCompletion),
	}
}

func (f *Fills) onOffer(ctx context.Context, peer metadata.NodeID, q *offerRequest) (offerReply, error) {
	x, err := f.wait(ctx, q.Dataset, peer, q.By)
	if err != nil {
		return offerReply{}, err
	}
	return offerReply{x.Accept(q.Offer)}, nil
}

func (f *Fills) onCompletion(ctx context.Context, peer metadata.NodeID, q *completionRequest) (struct{}, error) {
	x, err := f.wait(ctx, q.Dataset, peer, q.By)
	if err != nil {
		return struct{}{}, err
	}
	return struct{}{}, x.Complete(q.Completion)
}

// wait returns the fill of a dataset for a node that sends files of it. This node may learn of the dataset later than
// the sender: wait returns EAGAIN after waitTime.
func (f *Fills) wait(ctx context.Context, id metadata.DatasetID, peer, by metadata.NodeID) (*fill.Fill, error) {
	if peer != by {
		return nil, fmt.Errorf("node %d speaks for node %d: %w", peer, by, syscall.EPERM)
	}
	late := time.NewTimer(waitTime)
	defer late.Stop()
	for {
		x, begun := f.get(id)
		if x != nil {
			return x, nil
		}
		v, changed := f.cfg.Node.Watch()
		if ds, known := v.Dataset(id); known && ds.Phase.Ended() {
			return nil, fmt.Errorf("dataset %s has %v: %w", ds.Name, ds.Phase, syscall.ESTALE)
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
