package member

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/ingest"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein"
)

// Propose has the control group agree on c, wherever its leader is. When it returns, the view of this node includes c.
func (m *Member) Propose(ctx context.Context, c raftstore.Command) (cluster.View, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.cfg.Ctx, cancel)() // calls do not outlast the daemon
	for {
		v, err := m.proposeTo(ctx, m.Leader(), c)
		var other *raftstore.NotLeaderError
		if err == nil || ctx.Err() != nil {
			return v, err
		}
		if !errors.As(err, &other) && !node.Unreachable(err) {
			return v, err
		}
		m.Nudge() // Run finds the leader
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("no leader: %w", err)
		case <-m.cfg.Ctx.Done():
			return v, err
		case <-time.After(m.cfg.Every):
		}
	}
}

func (m *Member) proposeTo(ctx context.Context, id metadata.NodeID, c raftstore.Command) (v cluster.View, err error) {
	if id == m.cfg.Job.Self {
		g := m.raftGroup()
		if g == nil {
			return v, &raftstore.NotLeaderError{}
		}
		v, err = g.Propose(ctx, c)
	} else {
		err = m.cfg.Node.Call(ctx, id, wire.OpPropose, c, &v)
	}
	if err == nil {
		m.setView(v)
	}
	return v, err
}

func (m *Member) onPropose(ctx context.Context, from metadata.NodeID, c *raftstore.Command) (cluster.View, error) {
	if err := checkProposal(from, m.View().Map, c); err != nil {
		return cluster.View{}, err
	}
	speaks := c.Kind != raftstore.KindSetPlan && c.Kind != raftstore.KindRemoveDataset
	if ds, ok := m.View().Dataset(c.Dataset.ID); ok && speaks && ds.Coordinator != from || int(from) >= len(m.cfg.Job.Hosts) {
		return cluster.View{}, fmt.Errorf("proposal by node %d for dataset %d: %w", from, c.Dataset.ID, syscall.EPERM)
	}
	v, err := m.proposeTo(ctx, m.cfg.Job.Self, *c)
	var other *raftstore.NotLeaderError
	if errors.As(err, &other) {
		return v, fmt.Errorf("%v: %w", err, node.ErrNotLeader)
	}
	return v, err
}

// maxDigest bounds the length of an access plan's digest.
const maxDigest = 32

// checkProposal refuses proposals that node from may not make. A node may propose changes of the datasets that it
// coordinates, and of the home whose records it has in the map m. Any node may set a plan or remove a dataset for its
// user, and have homes keep copies. Only the leader changes nodes.
func checkProposal(from metadata.NodeID, m cluster.Map, c *raftstore.Command) error {
	ds := c.Dataset
	switch {
	case c.Kind == raftstore.KindSetPlan && len(ds.Plan) <= maxDigest, c.Kind == raftstore.KindRemoveDataset && len(ds.Error) <= node.MaxErrorText:
		return nil
	case c.Kind == raftstore.KindCopied:
		return nil
	case c.Kind == raftstore.KindPartner:
		if at, _ := m.HomeAt(c.Home); c.Seat == 0 && c.Home != from || c.Seat > 0 && at != from {
			return fmt.Errorf("proposal by node %d for the home %d: %w", from, c.Home, syscall.EPERM)
		}
		return nil
	case c.Kind != raftstore.KindAddDataset && c.Kind != raftstore.KindSetDataset:
		return fmt.Errorf("proposal of %.32q by node %d: %w", c.Kind, from, syscall.EPERM)
	case ds.Coordinator != from:
		return fmt.Errorf("proposal by node %d for a dataset of node %d: %w", from, ds.Coordinator, syscall.EPERM)
	case len(ds.Spec) > ingest.MaxSpec:
		return fmt.Errorf("proposal with a spec of %d bytes: %w", len(ds.Spec), syscall.EMSGSIZE)
	case ds.Replicas.Check() != nil:
		return fmt.Errorf("proposal with replicas=%.32q: %w", ds.Replicas, syscall.EINVAL)
	case c.Kind == raftstore.KindAddDataset:
		return stagein.Request{Source: ds.Source, Name: ds.Name}.Validate()
	case ds.Phase != cluster.Publishing && ds.Phase != cluster.Failed && ds.Phase != cluster.Staging:
		return fmt.Errorf("proposal that dataset %d be %v: %w", ds.ID, ds.Phase, syscall.EPERM)
	case len(ds.Error) > node.MaxErrorText || len(ds.Digest) > node.MaxErrorText:
		return fmt.Errorf("proposal with an error of %d bytes: %w", len(ds.Error), syscall.EMSGSIZE)
	}
	return nil
}
