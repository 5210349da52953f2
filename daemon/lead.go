package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/ingest"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein"
)

// heard is the newest report of a node and when it came.
type heard struct {
	report
	at time.Time
}

// leadership is what a leader remembers of the nodes' reports. A new leader
// begins with an empty memory, and gives every node the time of a full silence
// before it judges.
type leadership struct {
	mu      sync.Mutex                // leadMu of the package comment
	since   time.Time                 // guarded by mu; zero while another leads
	reports map[metadata.NodeID]heard // guarded by mu
	started map[string]bool           // guarded by mu; datasets of the job file that this leader has begun

	news chan struct{} // a report said something new; one is enough
}

func (l *leadership) init() {
	l.reports = make(map[metadata.NodeID]heard)
	l.started = make(map[string]bool)
	l.news = make(chan struct{}, 1)
}

func (l *leadership) hear(r report, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.reports[r.Node].report
	l.reports[r.Node] = heard{r, at}
	if !r.differs(&was) {
		return
	}
	select {
	case l.news <- struct{}{}:
	default: // who is to look has not yet
	}
}

// memory returns since when this node leads, and a copy of the reports.
func (l *leadership) memory(leads bool, at time.Time) (time.Time, map[metadata.NodeID]heard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !leads {
		l.since = time.Time{}
		clear(l.reports)
		return l.since, nil
	}
	if l.since.IsZero() {
		l.since = at
	}
	m := make(map[metadata.NodeID]heard, len(l.reports))
	for id, h := range l.reports {
		m[id] = h
	}
	return l.since, m
}

// outFailures sums up what cannot be copied out on the nodes that serve in m. The shares
// of other nodes have been reassigned.
func (l *leadership) outFailures(m cluster.Map) []stageout.Failures {
	l.mu.Lock()
	defer l.mu.Unlock()
	var all []stageout.Failures
	for _, n := range m.Nodes {
		if node.Serving(n) {
			all = append(all, l.reports[n.ID].Out...)
		}
	}
	return stageout.Merge(all)
}

// notifies reports whether the node of r notifies the user of failures: the one that has
// the job's output or, if none has, the first that serves.
func (l *leadership) notifies(m cluster.Map, r *report) bool {
	ids := node.Participants(m)
	if r.HasOutput || len(ids) == 0 || ids[0] != r.Node {
		return r.HasOutput
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if h, known := l.reports[id]; !known || h.HasOutput {
			return false
		}
	}
	return true
}

// begin reports whether the dataset name is to be started by the caller.
func (l *leadership) begin(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started[name] {
		return false
	}
	l.started[name] = true
	return true
}

// again undoes begin: the registry could not be told of the dataset.
func (l *leadership) again(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.started, name)
}

// leadLoop does the leader's duties while this node leads.
func (d *Daemon) leadLoop(ctx context.Context) {
	t := time.NewTicker(d.cfg.Timing.Report)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-d.lead.news:
		}
		leads := d.group.IsLeader()
		since, reports := d.lead.memory(leads, time.Now())
		if !leads {
			continue
		}
		v := d.group.View()
		d.setView(v) // what is begun below is planned by no older one
		for _, c := range d.duties(v, since, reports, time.Now()) {
			if err := d.duty(ctx, c); err != nil {
				d.log.WithError(err).Debug("proposal refused")
				break
			}
		}
		d.beginDatasets(v)
	}
}

func (d *Daemon) duty(ctx context.Context, c raftstore.Command) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := d.group.Propose(ctx, c)
	return err
}

// duties is what a leader that heard these reports proposes about v. It is a
// function of its arguments and of the job alone.
func (d *Daemon) duties(v cluster.View, since time.Time, reports map[metadata.NodeID]heard, at time.Time) []raftstore.Command {
	cs := d.nodeDuties(v, since, reports, at)
	cs = append(cs, datasetDuties(v, reports)...)
	if !v.Closing && allDone(v.Map, reports) {
		cs = append(cs, raftstore.Command{Kind: "closing"})
	}
	return cs
}

func (d *Daemon) nodeDuties(v cluster.View, since time.Time, reports map[metadata.NodeID]heard, at time.Time) []raftstore.Command {
	var cs []raftstore.Command
	set := func(n cluster.Node, s cluster.State, addr string) {
		cs = append(cs, raftstore.Command{Kind: "node", Node: n.ID, State: s, Addr: addr})
	}
	for _, n := range v.Map.Nodes {
		h, known := reports[n.ID]
		silence := at.Sub(since)
		if known {
			silence = at.Sub(h.at)
		}
		fresh := known && silence < d.cfg.Timing.Down
		switch {
		case n.State == cluster.Joining && fresh && h.Ready, n.State == cluster.Down && fresh && h.Ready && !h.Leaving:
			set(n, cluster.Up, h.Addr)
		case n.State == cluster.Joining && d.startOver(since, at):
			set(n, cluster.Down, "")
		case n.State == cluster.Up && fresh && h.Leaving, n.State == cluster.Down && fresh && h.Ready && len(n.Terms) > 0:
			// Who was given up and is back while it leaves has data to copy out.
			set(n, cluster.Leaving, h.Addr)
		case (n.State == cluster.Up || n.State == cluster.Leaving) && !fresh && !v.Closing && at.Sub(since) > d.cfg.Timing.Down:
			d.log.WithField("host", n.Host).Warn("does not answer, given up")
			set(n, cluster.Down, "")
		}
	}
	return cs
}

// startOver reports whether a host that has not come up by now is not to be
// waited for. The time counts from this daemon's own start, however late it was
// elected, so that every node hears the name of the missing one before its
// keeper loses patience; but what has come up gets the time to report to it.
func (d *Daemon) startOver(since, at time.Time) bool {
	return at.Sub(d.phases.started()) > d.job.StartLimit() && at.Sub(since) > 8*d.cfg.Timing.Report
}

func datasetDuties(v cluster.View, reports map[metadata.NodeID]heard) []raftstore.Command {
	var cs []raftstore.Command
	for _, ds := range v.Datasets {
		c, _ := v.Map.Node(ds.Coordinator)
		switch {
		case ds.Phase == cluster.Staging && c.State == cluster.Down && ingest.CanRestart(ds) && len(v.Map.Up()) > 0:
			if !ds.Reading { // else the standbys know
				ds.SourceBytes += reports[ds.Coordinator].Scanned[ds.ID]
			}
			ds.Coordinator = v.Map.Up()[0]
			ds.Attempt++
		case ds.Phase == cluster.Staging && c.State == cluster.Down:
			ds.Phase, ds.Error = cluster.Failed, fmt.Sprintf("%s, which led the stage-in, does not answer", c.Host)
		case ds.Phase == cluster.Publishing && c.State == cluster.Down && lost(ds, v.Map, reports):
			ds.Phase, ds.Error = cluster.Failed, fmt.Sprintf("%s does not answer, and nobody else has the manifest: stage it in again", c.Host)
		case ds.Phase == cluster.Publishing:
			p, trouble := published(ds, v.Map, reports)
			if p == cluster.Publishing {
				continue
			}
			ds.Phase, ds.Error = p, trouble
			if p == cluster.Sealed && ds.Fill {
				ds.Phase = cluster.Filling
			} else {
				ds.Sealed = now()
			}
		case ds.Phase == cluster.Filling:
			p, trouble := sealing(ds, v.Map, reports)
			if p == cluster.Filling {
				continue
			}
			ds.Phase, ds.Error, ds.Sealed = p, trouble, now()
			ds.SourceBytes += fillProgress(ds.ID, reports).SourceBytes
		default:
			continue
		}
		cs = append(cs, raftstore.Command{Kind: "dataset-set", Dataset: ds})
	}
	return cs
}

// published says how far the spreading of ds's manifest is.
func published(ds cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard) (cluster.Phase, string) {
	for _, n := range m.Nodes {
		if !node.Serving(n) {
			continue
		}
		r := reports[n.ID]
		if t := r.Trouble[ds.ID]; t != "" {
			return cluster.Failed, fmt.Sprintf("manifest on %s: %.500s", n.Host, t)
		}
		if r.Manifests[ds.ID] != ds.Digest {
			return cluster.Publishing, ""
		}
	}
	return cluster.Sealed, ""
}

// lost reports whether no node that serves has the manifest of ds, or is a standby for it.
func lost(ds cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard) bool {
	for _, n := range m.Nodes {
		r, known := reports[n.ID]
		if node.Serving(n) && (!known || r.Manifests[ds.ID] == ds.Digest || r.Standby[ds.ID] == ds.Digest) {
			return false
		}
	}
	return true
}

// allDone reports whether every node that still answers has finished, and has
// copied the share that falls to it now: when a node is lost, all shares change.
func allDone(m cluster.Map, reports map[metadata.NodeID]heard) bool {
	n, crew := 0, crewOf(m)
	for _, x := range m.Nodes {
		if !node.Serving(x) {
			continue
		}
		if r := reports[x.ID]; !r.Done || r.Crew != crew {
			return false
		}
		n++
	}
	return n > 0
}

// beginDatasets starts the job file's datasets once the map is complete. A
// leader that takes over finds those of its predecessor in the registry.
func (d *Daemon) beginDatasets(v cluster.View) {
	if joining(v.Map) || len(absent(v.Map)) > 0 || v.Closing {
		return
	}
	for _, s := range d.job.Datasets {
		if registered(v, s.Name) || !d.lead.begin(s.Name) {
			continue
		}
		d.Spawn(func(ctx context.Context) {
			c, err := d.stager.Begin(ctx, s)
			if err != nil {
				d.lead.again(s.Name)
			} else {
				err = c.Run(ctx)
			}
			if err != nil {
				d.log.WithError(err).WithField("dataset", s.Name).Error("stage-in failed")
			}
		})
	}
}

func registered(v cluster.View, name string) bool {
	for _, ds := range v.Datasets {
		if ds.Name == name {
			return true
		}
	}
	return false
}

// sealing says how far the fetch of the files of ds is.
func sealing(ds cluster.Dataset, m cluster.Map, reports map[metadata.NodeID]heard) (cluster.Phase, string) {
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

// fillProgress is the sum of what the nodes have reported to this one, which leads.
func (l *leadership) fillProgress(id metadata.DatasetID) stagein.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fillProgress(id, l.reports)
}

func fillProgress(id metadata.DatasetID, reports map[metadata.NodeID]heard) stagein.Progress {
	var all []stagein.Progress
	for _, r := range reports {
		if x, ok := r.Filled[id]; ok {
			all = append(all, x.Progress)
		}
	}
	return stagein.Sum(all)
}
