package daemon

import (
	"context"
	"maps"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// What moves a dataset on goes from node to node without waiting for anybody's next
// report: a leader looks at its duties when a report says something new, and has the
// nodes report that are not in the group when it knows something new of a dataset.

// differs reports whether r says something else than was does of what is a leader's duty.
func (r *report) differs(was *report) bool {
	same := func(a, b dataset.FillReport) bool { return a.Complete == b.Complete && a.Error == b.Error }
	return r.Ready != was.Ready || r.Leaving != was.Leaving || r.Done != was.Done || r.Crew != was.Crew ||
		!maps.Equal(r.Manifests, was.Manifests) || !maps.Equal(r.Trouble, was.Trouble) || !maps.EqualFunc(r.Filled, was.Filled, same)
}

// moved reports whether a dataset is in another phase than it was, or is new.
func moved(was, now []cluster.Dataset) bool {
	return !slices.EqualFunc(was, now, func(a, b cluster.Dataset) bool {
		return a.ID == b.ID && a.Phase == b.Phase && a.Digest == b.Digest && a.Attempt == b.Attempt
	})
}

// behind is the nodes that are not in the group, and did not have v when they
// reported last.
func (l *leadership) behind(v cluster.View, hosts int) []metadata.NodeID {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []metadata.NodeID
	for _, n := range v.Map.Nodes {
		if r, known := l.reports[n.ID]; known && node.Serving(n) && r.Version < v.Version && !slices.Contains(members(hosts), n.ID) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}

// tellers is how many nodes are told at a time that there is something new.
const tellers = 32

// newsLoop has nodes report that do not see the group by themselves, when there is
// something new of a dataset and this node leads.
func (d *Daemon) newsLoop(ctx context.Context) {
	var told []cluster.Dataset
	for {
		v, changed := d.Watch()
		if moved(told, v.Datasets) {
			told = v.Datasets
			d.passOn(ctx, v)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (d *Daemon) passOn(ctx context.Context, v cluster.View) {
	if !d.group.IsLeader() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.Timing.Report) // then they report anyhow
	defer cancel()
	r := d.report()
	var g errgroup.Group
	g.SetLimit(tellers)
	for _, id := range d.lead.behind(v, len(d.job.Hosts)) {
		g.Go(func() error { return node.CallJSON(ctx, d.peers.To(id), wire.OpReport, r, new(reportReply)) })
	}
	if err := g.Wait(); err != nil {
		d.log.WithError(err).Debug("a node was not told of a dataset")
	}
}
