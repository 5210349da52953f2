package leader

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Group is the control group as a member uses it; *raftstore.Group implements it.
type Group interface {
	IsLeader() bool
	Term() uint64 // grows with each leader
	View() cluster.View
	Propose(ctx context.Context, c raftstore.Command) (cluster.View, error)
	// Confirm returns nil when View includes all earlier decisions of the group.
	Confirm() error
}

// Config configures a Leader.
type Config struct {
	Node    node.Node
	Job     *job.File
	Every   time.Duration                                                                   // between two reports of a node
	Down    time.Duration                                                                   // silence after which a node is declared down
	Started time.Time                                                                       // when this daemon started
	SetView func(cluster.View)                                                              // stores a newer view
	Report  func() Report                                                                   // this node's report
	StageIn func(context.Context, job.Dataset) (run func(context.Context) error, err error) // enters a dataset of the job file in the registry
}

// heard is the newest report of a node with its arrival time.
type heard struct {
	Report
	at time.Time
}

// Leader collects reports, and acts on them while this node leads the group.
type Leader struct {
	cfg  Config
	wake chan struct{} // a report has a relevant change; one token is enough

	mu      sync.Mutex
	since   time.Time                 // guarded by mu; start of the silence period; zero while another node leads
	term    uint64                    // guarded by mu; the last term in which this node led
	before  time.Time                 // guarded by mu; since at the loss of the lead
	kept    map[metadata.NodeID]heard // guarded by mu; reports at the loss of the lead
	looked  time.Time                 // guarded by mu; when it last examined the reports
	reports map[metadata.NodeID]heard // guarded by mu
	marks   uint64                    // guarded by mu; version of the marks in the reports
	started map[string]bool           // guarded by mu; datasets of the job file that this leader has started
	// confirmed: guarded by mu; the view includes all proposals of earlier leaders.
	confirmed bool
	doomed    map[metadata.NodeID]bool // guarded by mu; nodes given up by a proposal whose outcome the view may lack
	// restoring: guarded by mu; the view may lack the outcome of a proposal that copies count. A node that makes copies
	// anew must know the outcome first.
	restoring bool
}

// New returns a Leader without reports.
func New(cfg Config) *Leader {
	return &Leader{cfg: cfg, wake: make(chan struct{}, 1), reports: make(map[metadata.NodeID]heard), started: make(map[string]bool), doomed: make(map[metadata.NodeID]bool)}
}

// Record records a report that arrived at at. It reports whether the node can be given up for its silence so far only
// by changes that the view already includes: then its lease begins again (copies.Lease).
func (l *Leader) Record(r Report, at time.Time) (leased bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	leased = l.confirmed && !l.doomed[r.Node] && !l.restoring
	was := l.reports[r.Node].Report
	r.after(&was)
	l.reports[r.Node] = heard{r, at}
	if !maps.Equal(r.Replicas, was.Replicas) {
		l.marks = max(l.marks+1, uint64(at.UnixNano())) // also newer than the version of an earlier leader
	}
	if !r.differs(&was) {
		return leased
	}
	select {
	case l.wake <- struct{}{}:
	default: // it is already awake
	}
	return leased
}

// after merges the previous report was into r. If r was delayed, the node's later run may not guard r's copies.
func (r *Report) after(was *Report) {
	if r.Run < was.Run {
		r.Run, r.Rebuilt.Epoch = was.Run, 0
	}
}

// resume restores the knowledge of the last check, without the time since then, in which no node could report.
func (l *Leader) resume(at time.Time) {
	gap := at.Sub(l.looked)
	l.since = l.before.Add(gap)
	for id, h := range l.kept {
		h.at = h.at.Add(gap)
		if r, ok := l.reports[id]; ok {
			r.after(&h.Report)
			h = r
		}
		l.reports[id] = h
	}
	l.marks = max(l.marks+1, uint64(at.UnixNano())) // nodes may have some of them under the present version
}

// memory returns the time from which a node's silence counts, and a copy of the reports. That time is when this node
// began to lead, or resumed after a pause, during which it recorded no reports. A leader that is elected again for the
// very next term keeps its knowledge, because no other node can have led meanwhile. Otherwise, after a short loss of
// the lead on busy processors, a lost node could be silent for another full period.
func (l *Leader) memory(leads bool, term uint64, at time.Time) (time.Time, map[metadata.NodeID]heard) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lost := !leads || term != l.term; lost && !l.since.IsZero() {
		l.before, l.kept = l.since, maps.Clone(l.reports)
		l.since, l.confirmed, l.restoring = time.Time{}, false, false // the view may lack outcomes of proposals
		clear(l.doomed)
		clear(l.reports)
	}
	if !leads {
		clear(l.reports)
		return l.since, nil
	}
	paused := at.Sub(l.looked) > l.cfg.Down/2
	switch {
	case l.since.IsZero() && term == l.term+1 && !paused:
		l.resume(at)
	case l.since.IsZero() || paused:
		l.since = at
	}
	l.looked, l.term = at, term
	m := make(map[metadata.NodeID]heard, len(l.reports))
	maps.Copy(m, l.reports)
	return l.since, m
}

// leadership reports whether this node leads, and returns the term.
func leadership(g Group) (leads bool, term uint64) {
	term = g.Term()
	return g.IsLeader() && g.Term() == term, term
}

// AllHave reports whether all other nodes that serve in v, and have reported, have at least v.
func (l *Leader) AllHave(v cluster.View) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range v.Map.Nodes {
		if r, ok := l.reports[n.ID]; ok && n.ID != l.cfg.Node.Self() && node.Serving(n) && r.Version < v.Version {
			return false
		}
	}
	return true
}

// lookEvery is the longest time between two checks of the reports, so that silence is noticed in time.
const lookEvery = 250 * time.Millisecond

// Run carries out the duties while this node leads g, until ctx ends.
func (l *Leader) Run(ctx context.Context, g Group) {
	t := time.NewTicker(min(l.cfg.Every, lookEvery))
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-l.wake:
			if Joining(g.View().Map) && node.Pause(ctx, l.joinPause()) != nil {
				return
			}
		}
		leads, term := leadership(g)
		at := time.Now()
		since, reports := l.memory(leads, term, at)
		if leads {
			l.act(ctx, g, since, reports, at)
		}
	}
}

// joinPause is how long the leader waits for more nodes while a job starts, so that many join in one proposal: every
// change of the map is sent to all nodes.
func (l *Leader) joinPause() time.Duration {
	return min(time.Duration(len(l.cfg.Job.Hosts))*time.Millisecond, lookEvery/2)
}

// proposeTime bounds one proposal.
const proposeTime = 5 * time.Second

// act proposes the changes that the reports received by at call for. at is passed in because this process may be
// stopped meanwhile, which says nothing about the other nodes.
func (l *Leader) act(ctx context.Context, g Group, since time.Time, reports map[metadata.NodeID]heard, at time.Time) {
	l.confirm(g)
	v := g.View()
	l.cfg.SetView(v) // a stage-in that starts below must not plan with an older view
	for _, c := range l.duties(v, since, reports, at) {
		if c.Kind == raftstore.KindNodes {
			if c.Nodes = l.doom(c.Nodes, reports); len(c.Nodes) == 0 {
				continue
			}
		}
		if c.Kind == raftstore.KindRestored && !l.restore(v.Map) {
			continue
		}
		if err := propose(ctx, g, c); err != nil {
			l.cfg.Node.Log().WithError(err).Debug("proposal refused")
			break
		}
	}
	l.startDatasets(v)
}

// confirm updates the view to the outcome of all proposals so far, if it may lack one.
func (l *Leader) confirm(g Group) {
	l.mu.Lock()
	needed := !l.confirmed || len(l.doomed) > 0 || l.restoring
	l.mu.Unlock()
	if !needed || g.Confirm() != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.confirmed = !l.since.IsZero()
	clear(l.doomed)
	l.restoring = false
}

// doom returns the changes, except those that give up a node that has reported after all. Later reports of the nodes
// given up do not count until the outcome is known.
func (l *Leader) doom(changes []cluster.Change, reports map[metadata.NodeID]heard) []cluster.Change {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(changes, func(c cluster.Change) bool {
		if c.State != cluster.Down {
			return false
		}
		if l.reports[c.ID].at != reports[c.ID].at {
			return true
		}
		l.doomed[c.ID] = true
		return false
	})
}

// restore reports whether all reports still say that the copies are made. Later reports do not count for a lease until
// the outcome of the proposal is known, because a restarted node has forgotten which copies it has made.
func (l *Leader) restore(m cluster.Map) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.restoring = rebuilt(m, l.reports)
	return l.restoring
}

func propose(ctx context.Context, g Group, c raftstore.Command) error {
	ctx, cancel := context.WithTimeout(ctx, proposeTime)
	defer cancel()
	_, err := g.Propose(ctx, c)
	return err
}

// takeStart reports whether the caller must start the dataset name; it returns true once.
func (l *Leader) takeStart(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started[name] {
		return false
	}
	l.started[name] = true
	return true
}

// release undoes takeStart for a dataset that is not in the registry.
func (l *Leader) release(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.started, name)
}

// startDatasets starts the datasets of the job file once the map is complete. After a change of leader, those of the
// predecessor are in the registry.
func (l *Leader) startDatasets(v cluster.View) {
	if Joining(v.Map) || len(Absent(v.Map)) > 0 || v.Closing {
		return
	}
	for _, d := range l.cfg.Job.Datasets {
		known := slices.ContainsFunc(v.Datasets, func(ds cluster.Dataset) bool { return ds.Name == d.Name })
		if known || !l.takeStart(d.Name) {
			continue
		}
		l.cfg.Node.Spawn(func(ctx context.Context) {
			run, err := l.cfg.StageIn(ctx, d)
			if err != nil {
				l.release(d.Name)
			} else {
				err = run(ctx)
			}
			if err != nil {
				l.cfg.Node.Log().WithError(err).WithField("dataset", d.Name).Error("stage-in failed")
			}
		})
	}
}

// fanout is how many nodes a broadcast calls concurrently.
const fanout = 32

// Broadcast sends this node's report to the nodes outside the group when the view has an urgent change and this node
// leads, so that they ask for the new view.
func (l *Leader) Broadcast(ctx context.Context, g Group) {
	was, _ := l.cfg.Node.Watch()
	for {
		v, changed := l.cfg.Node.Watch()
		if urgent(was, v) && g.IsLeader() {
			l.broadcast(ctx, v)
		}
		was = v
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func (l *Leader) broadcast(ctx context.Context, v cluster.View) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Every) // then they report anyway
	defer cancel()
	r := l.cfg.Report()
	var g errgroup.Group
	g.SetLimit(fanout)
	for _, id := range l.outdated(v) {
		g.Go(func() error { return l.cfg.Node.Call(ctx, id, wire.OpReport, r, nil) })
	}
	if err := g.Wait(); err != nil {
		l.cfg.Node.Log().WithError(err).Debug("change of a dataset not broadcast to all nodes: they learn of it with their next report")
	}
}

// urgent reports whether nodes wait for a change from was to now: the job is complete, a node is lost, or a dataset has
// advanced.
func urgent(was, now cluster.View) bool {
	return Joining(was.Map) && !Joining(now.Map) || advanced(was.Datasets, now.Datasets) ||
		slices.ContainsFunc(now.Map.Nodes, func(n cluster.Node) bool {
			old, _ := was.Map.Node(n.ID)
			return n.State == cluster.Down && node.Serving(old)
		})
}

// advanced reports whether a dataset has a new phase, attempt or digest, or is new.
func advanced(was, now []cluster.Dataset) bool {
	return !slices.EqualFunc(was, now, func(a, b cluster.Dataset) bool {
		return a.ID == b.ID && a.Phase == b.Phase && a.Digest == b.Digest && a.Attempt == b.Attempt
	})
}

// outdated returns the nodes outside the group that did not have v at their last report.
func (l *Leader) outdated(v cluster.View) []metadata.NodeID {
	l.mu.Lock()
	defer l.mu.Unlock()
	members := Members(len(l.cfg.Job.Hosts))
	var ids []metadata.NodeID
	for _, n := range v.Map.Nodes {
		if r, known := l.reports[n.ID]; known && node.Serving(n) && r.Version < v.Version && !slices.Contains(members, n.ID) {
			ids = append(ids, n.ID)
		}
	}
	return ids
}
