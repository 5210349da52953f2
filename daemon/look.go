package daemon

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

const (
	// maxLookers is how many nodes help one that walks a tree: with more, the
	// source's servers are what it waits for.
	maxLookers = 16
	// lookTime is how long a node may look before the one who walks does so itself.
	lookTime = 30 * time.Second
)

// lookers is the nodes that help this one to walk a tree, not the same for every
// dataset.
func (d *Daemon) lookers(ds metadata.DatasetID) (all []walk.Remote) {
	nodes := node.Participants(d.View().Map)
	for i := range nodes {
		id := nodes[(i+int(ds)*maxLookers)%len(nodes)]
		if id == d.job.Self || len(all) == maxLookers {
			continue
		}
		all = append(all, func(ctx context.Context, s walk.Request) (seen walk.Reply, err error) {
			ctx, cancel := context.WithTimeout(ctx, lookTime)
			defer cancel()
			err = d.Call(ctx, id, wire.OpScan, s, &seen)
			return seen, err
		})
	}
	return all
}

func (d *Daemon) onLook(ctx context.Context, _ metadata.NodeID, s *walk.Request) (walk.Reply, error) {
	return s.Serve(ctx, d.cfg.Source)
}
