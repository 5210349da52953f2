package leader

import (
	"fmt"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// duties returns the proposals about v of a leader that has received these reports. It depends only on its arguments
// and the job.
func (l *Leader) duties(v cluster.View, since time.Time, reports map[metadata.NodeID]heard, at time.Time) []raftstore.Command {
	cs := l.nodeDuties(v, since, reports, at)
	cs = append(cs, datasetDuties(v, reports, metadata.TimeOf(at))...)
	if !v.Closing && v.Copied && v.Map.Unrestored() && rebuilt(v.Map, reports) {
		cs = append(cs, raftstore.Command{Kind: raftstore.KindRestored, Epoch: v.Map.Changed()})
	}
	if !v.Closing && allDone(v.Map, reports) {
		cs = append(cs, raftstore.Command{Kind: raftstore.KindClosing})
	}
	return cs
}

// nodeDuties returns one proposal with all changes of nodes.
func (l *Leader) nodeDuties(v cluster.View, since time.Time, reports map[metadata.NodeID]heard, at time.Time) []raftstore.Command {
	var cs []cluster.Change
	set := func(n cluster.Node, s cluster.State, addr string) {
		cs = append(cs, cluster.Change{ID: n.ID, State: s, Addr: addr, Switch: reports[n.ID].Switch})
	}
	for _, n := range v.Map.Nodes {
		h, known := reports[n.ID]
		silence := at.Sub(since)
		if known {
			silence = at.Sub(h.at)
		}
		fresh := known && silence < l.cfg.Down
		switch {
		case n.State == cluster.Joining && fresh && h.Ready, n.State == cluster.Down && fresh && h.Ready && !h.Leaving:
			set(n, cluster.Up, h.Addr)
		case n.State == cluster.Joining && l.startOver(since, at):
			set(n, cluster.Down, "")
		case n.State == cluster.Up && fresh && h.Leaving, n.State == cluster.Down && fresh && h.Ready && len(n.Terms) > 0:
			// A node that was down and returns while leaving has data to copy out.
			set(n, cluster.Leaving, h.Addr)
		case (n.State == cluster.Up || n.State == cluster.Leaving) && !fresh && !v.Closing && at.Sub(since) > l.cfg.Down:
			l.cfg.Node.Log().WithField("host", n.Host).WithField("silence", silence.Round(time.Millisecond)).
				Warn("node does not report: declared down, the others take over")
			set(n, cluster.Down, "")
		}
	}
	if len(cs) == 0 {
		return nil
	}
	return []raftstore.Command{{Kind: raftstore.KindNodes, Nodes: cs}}
}

// startOver reports whether to stop waiting for a host that has not come up. The time counts from this daemon's own
// start, however late it was elected, so that every node learns the name of the missing host before its keeper gives
// up. Hosts that have come up get the time to report to a new leader.
func (l *Leader) startOver(since, at time.Time) bool {
	return at.Sub(l.cfg.Started) > l.cfg.Job.StartLimit() && at.Sub(since) > 8*l.cfg.Every
}

func datasetDuties(v cluster.View, reports map[metadata.NodeID]heard, now metadata.Time) []raftstore.Command {
	var cs []raftstore.Command
	for _, ds := range v.Datasets {
		if nextPhase(&ds, v.Map, reports, now) {
			cs = append(cs, raftstore.Command{Kind: raftstore.KindSetDataset, Dataset: ds})
		}
	}
	return cs
}

// nextPhase moves a dataset to its next phase, attempt or coordinator, if the reports call for it.
func nextPhase(ds *cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard, now metadata.Time) bool {
	c, _ := m.Node(ds.Coordinator)
	up := m.Up()
	switch {
	case ds.Phase == cluster.Staging && c.State == cluster.Down && ds.CanRestart() && len(up) > 0:
		ds.Coordinator = up[0]
		ds.Attempt++
	case ds.Phase == cluster.Staging && c.State == cluster.Down:
		ds.Phase, ds.Error = cluster.Failed, fmt.Sprintf("%s, which coordinated the stage-in, does not answer: stage it in again", c.Host)
	case ds.Phase == cluster.Publishing && c.State == cluster.Down && manifestLost(*ds, m, reports):
		ds.Phase, ds.Error = cluster.Failed, fmt.Sprintf("%s does not answer, and no other node has the manifest: stage it in again", c.Host)
	case ds.Phase == cluster.Publishing:
		p, trouble := published(*ds, m, reports)
		if p == cluster.Publishing {
			return false
		}
		ds.Phase, ds.Error = p, trouble
		if p == cluster.Sealed && ds.Fill {
			ds.Phase = cluster.Filling
		} else {
			ds.Sealed = now
		}
	case ds.Phase == cluster.Filling:
		p, trouble := filled(*ds, m, reports)
		if p == cluster.Filling {
			return false
		}
		ds.Phase, ds.Error, ds.Sealed = p, trouble, now
		all := fillProgress(ds.ID, reports)
		ds.SourceBytes += all.SourceBytes
		ds.Adopted, ds.AdoptedBytes = all.Adopted, all.AdoptedBytes
		for _, n := range m.Nodes {
			if node.Serving(n) {
				ds.Missing += reports[n.ID].Filled[ds.ID].Missing
			}
		}
	default:
		return false
	}
	return true
}

// published returns the next phase of a dataset whose manifest is being loaded: Sealed if all nodes have and show it.
func published(ds cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard) (cluster.Phase, string) {
	for _, n := range m.Nodes {
		if !node.Serving(n) {
			continue
		}
		r := reports[n.ID]
		if t := r.Trouble[ds.ID]; t != "" {
			return cluster.Failed, fmt.Sprintf("manifest on %s: %.500s", n.Host, t)
		}
		if r.Manifests[ds.ID] != ds.Digest || slices.Contains(r.Hidden, ds.ID) {
			return cluster.Publishing, ""
		}
	}
	return cluster.Sealed, ""
}

// filled returns the next phase of a dataset whose files are being fetched: Sealed if all nodes have theirs.
func filled(ds cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard) (cluster.Phase, string) {
	for _, n := range m.Nodes {
		if !node.Serving(n) {
			continue
		}
		switch r := reports[n.ID].Filled[ds.ID]; {
		case r.Error != "":
			return cluster.Failed, fmt.Sprintf("%s: %s", n.Host, r.Error)
		case r.Complete < m.Epoch || r.Complete == 0:
			return cluster.Filling, ""
		}
	}
	return cluster.Sealed, ""
}

// manifestLost reports whether no serving node has the manifest of ds, not even as a standby.
func manifestLost(ds cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard) bool {
	for _, n := range m.Nodes {
		r, known := reports[n.ID]
		if node.Serving(n) && (!known || r.Manifests[ds.ID] == ds.Digest || r.Standby[ds.ID] == ds.Digest) {
			return false
		}
	}
	return true
}

// rebuilt reports whether every serving node has made the copies of which it is the source.
func rebuilt(m cluster.Map, reports map[metadata.NodeID]heard) bool {
	return !slices.ContainsFunc(m.Nodes, func(n cluster.Node) bool {
		return node.Serving(n) && reports[n.ID].Rebuilt.Epoch < m.Changed()
	})
}

// allDone reports whether every serving node has copied its current share: when a node is lost, all shares change.
func allDone(m cluster.Map, reports map[metadata.NodeID]heard) bool {
	n, participants := 0, Participants(m)
	for _, x := range m.Nodes {
		if !node.Serving(x) {
			continue
		}
		if r := reports[x.ID]; !r.Done || r.Copied != participants {
			return false
		}
		n++
	}
	return n > 0
}
