package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/ingest"
	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
	"github.com/bivouacfs/bivouac/stagein"
)

// reportReply answers a report. Leader is the member to report to next.
type reportReply struct {
	Leader metadata.NodeID `json:"leader"`
	Known  bool            `json:"known"`
	Delta  *cluster.Delta  `json:"delta,omitempty"` // to the view that the member has, if it is newer
	// Out is what cannot be copied out on any node, for the node that notifies the user.
	Out []stageout.Failures `json:"out,omitempty"`
	// Marks is the progress of all nodes with replicas, if it has changed since the report's
	// MarksVersion.
	Marks        map[metadata.DatasetID][]replicas.Mark `json:"marks,omitempty"`
	MarksVersion uint64                                 `json:"marks_version,omitempty"`
	// Leased: the leader has recorded the report (copies.Lease).
	Leased bool `json:"leased,omitempty"`
	// Notifies: the caller is the node that writes to the job's output.
	Notifies bool `json:"notifies,omitempty"`
}

// WaitUp waits until the job's map is complete. The error names the hosts that did not
// answer within the start timeout.
func (d *Daemon) WaitUp(ctx context.Context) error {
	// The leader declares a missing host down at the start timeout. This wait is a little
	// longer, and shorter than the keeper's, which adds three seconds.
	ctx, cancel := context.WithTimeout(ctx, d.job.StartLimit()+min(6*d.cfg.Timing.Report, 2*time.Second))
	defer cancel()
	err := d.Until(ctx, func(v cluster.View) bool {
		self, _ := v.Map.Node(d.job.Self)
		return v.Version > 0 && !leader.Joining(v.Map) && (node.Serving(self) || len(leader.Absent(v.Map)) > 0)
	})
	v := d.View()
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("no control plane after %v: %s: is a firewall between the nodes, or a host name wrong?",
				d.job.StartLimit(), d.silent(v))
		}
		return err
	}
	if missing := leader.Absent(v.Map); len(missing) > 0 {
		return fmt.Errorf("did not answer within %v: %s: is bivouac installed there, and are the ports open?",
			d.job.StartLimit(), strings.Join(missing, ","))
	}
	d.phases.setUp(now())
	return nil
}

// silent names the members of the control plane that cannot be reached, for the error of a
// failed start.
func (d *Daemon) silent(v cluster.View) string {
	if v.Version > 0 {
		return "waiting for " + strings.Join(leader.HostsIn(v.Map, cluster.Joining), ",")
	}
	var bad []string
	for _, id := range leader.Members(len(d.job.Hosts)) {
		ctx, cancel := context.WithTimeout(d.ctx, time.Second/2)
		var r reportReply
		if id != d.job.Self && node.CallJSON(ctx, d.peers.To(id), wire.OpReport, d.report(), &r) != nil {
			bad = append(bad, d.job.Hosts[id])
		}
		cancel()
	}
	if len(bad) == 0 {
		return "the first hosts answer but have no leader"
	}
	return strings.Join(bad, ",") + " does not answer"
}

func (d *Daemon) report() leader.Report {
	r := leader.Report{Node: d.job.Self, Version: d.View().Version, Ready: d.ready.Load()}
	r.Leaving, r.Done, r.Copied = d.leave.state()
	r.Manifests, r.Trouble = d.datasets.Tables.Report()
	r.Standby = d.stager.Standby()
	r.Filled = d.datasets.Fills.Report()
	r.Replicas, r.MarksVersion = d.datasets.Replicas.Report(), d.datasets.Replicas.Seen()
	r.Out = d.out.Failures()
	r.HasOutput = d.notifier.HasOutput()
	r.Space, _ = d.data.Space(d.ctx) // zeros if the store does not know
	r.Traffic, r.Rates = d.meter.read(time.Now())
	if a := d.addrs(d.job.Self); len(a) > 0 {
		r.Addr = a[0]
	}
	return r
}

// reportLoop reports to the leader, and gets the view from it.
func (d *Daemon) reportLoop(ctx context.Context) {
	t := time.NewTicker(d.cfg.Timing.Report)
	defer t.Stop()
	for next := 0; ; {
		if !d.reportOnce(ctx) { // ask the next member for the leader
			m := leader.Members(len(d.job.Hosts))
			next = (next + 1) % len(m)
			d.setLeader(m[next])
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-d.kick:
		}
	}
}

// leading is the leader of the control group, and since when, as far as is known here.
type leading struct {
	node  metadata.NodeID
	since time.Time
}

func (d *Daemon) setLeader(id metadata.NodeID) {
	d.viewMu.Lock()
	defer d.viewMu.Unlock()
	if d.leading.node != id {
		d.leading = leading{id, time.Now()}
	}
}

func (d *Daemon) leaderID() metadata.NodeID {
	d.viewMu.Lock()
	defer d.viewMu.Unlock()
	return d.leading.node
}

// reportOnce reports whether the member that it asked knew the leader.
func (d *Daemon) reportOnce(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, max(2*time.Second, 4*d.cfg.Timing.Report))
	defer cancel()
	to := d.leaderID()
	var r reportReply
	var err error
	sent := time.Now()
	if to == d.job.Self {
		r, err = d.onReport(ctx, d.job.Self, new(d.report()))
	} else {
		err = node.CallJSON(ctx, d.peers.To(to), wire.OpReport, d.report(), &r)
	}
	if err != nil || !r.Known {
		return false
	}
	d.setLeader(r.Leader)
	d.warn.answered(r.Notifies)
	d.notifier.Hear(r.Out)
	if r.MarksVersion > 0 {
		d.datasets.Replicas.Hear(r.MarksVersion, r.Marks)
	}
	if !d.take(ctx, r.Delta) {
		return false
	}
	if r.Leased {
		d.copies.lease.Renew(sent, d.cfg.Timing.Down)
	}
	return true
}

// Refresh returns when this node knows all that the leader knew when it was
// called, such as a dataset that another node registered just before.
func (d *Daemon) Refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	t := time.NewTicker(d.cfg.Timing.Report)
	defer t.Stop()
	for {
		asked := d.leaderID()
		if d.reportOnce(ctx) && d.leaderID() == asked {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no leader answers: %w", syscall.ETIMEDOUT)
		case <-d.ctx.Done():
			return fmt.Errorf("the daemon ends: %w", syscall.ESHUTDOWN)
		case <-t.C: // the report loop looks for the leader
		}
	}
}

// onReport is a member's answer to a report. On a node outside the group it is the leader's
// broadcast of a change: the node reports, and gets the new view.
func (d *Daemon) onReport(_ context.Context, peer metadata.NodeID, r *leader.Report) (reportReply, error) {
	var reply reportReply
	g := d.raftGroup()
	if peer != r.Node || int(peer) >= len(d.job.Hosts) {
		return reply, nil
	}
	if g == nil {
		if r.Version > d.View().Version {
			d.Nudge()
		}
		return reply, nil
	}
	reply.Leader, reply.Known = g.Leader()
	if g.IsLeader() {
		reply.Leased = d.lead.Record(*r, time.Now())
		if m := g.View().Map; d.lead.Notifies(m, r) {
			reply.Out, reply.Notifies = d.lead.OutFailures(m), true
		}
		reply.MarksVersion, reply.Marks = d.lead.Marks(r.MarksVersion)
	}
	if v := g.View(); v.Version > r.Version {
		reply.Delta = new(d.history.Delta(r.Version, v))
	}
	return reply, nil
}

func (d *Daemon) raftGroup() *raftstore.Group {
	d.viewMu.Lock()
	defer d.viewMu.Unlock()
	return d.group
}

// followGroup keeps the view of a member of the group.
func (d *Daemon) followGroup(ctx context.Context) {
	g := d.raftGroup()
	for {
		changed := g.Changed()
		d.setView(g.View())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// Propose has the control group agree on c, wherever its leader is. When it returns, the view
// of this node has c.
func (d *Daemon) Propose(ctx context.Context, c raftstore.Command) (cluster.View, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)() // nothing waits for an answer once the daemon stops
	for {
		v, err := d.proposeTo(ctx, d.leaderID(), c)
		var other *raftstore.NotLeaderError
		if err == nil || ctx.Err() != nil {
			return v, err
		}
		if !errors.As(err, &other) && !node.Unreachable(err) {
			return v, err
		}
		d.Nudge() // the report loop finds the leader
		select {
		case <-ctx.Done():
			return v, fmt.Errorf("no leader: %w", err)
		case <-d.ctx.Done():
			return v, err
		case <-time.After(d.cfg.Timing.Report):
		}
	}
}

func (d *Daemon) proposeTo(ctx context.Context, id metadata.NodeID, c raftstore.Command) (cluster.View, error) {
	if id == d.job.Self {
		g := d.raftGroup()
		if g == nil {
			return cluster.View{}, &raftstore.NotLeaderError{}
		}
		v, err := g.Propose(ctx, c)
		if err == nil {
			d.setView(v) // followGroup may come later
		}
		return v, err
	}
	var v cluster.View
	err := node.CallJSON(ctx, d.peers.To(id), wire.OpPropose, c, &v)
	if err == nil {
		d.setView(v)
	}
	return v, err
}

func (d *Daemon) onPropose(ctx context.Context, from metadata.NodeID, c *raftstore.Command) (cluster.View, error) {
	if err := checkProposal(from, c); err != nil {
		return cluster.View{}, err
	}
	speaks := c.Kind != raftstore.KindSetPlan && c.Kind != raftstore.KindRemoveDataset
	if ds, ok := d.View().Dataset(c.Dataset.ID); ok && speaks && ds.Coordinator != from || int(from) >= len(d.job.Hosts) {
		return cluster.View{}, fmt.Errorf("proposal by node %d for dataset %d: %w", from, c.Dataset.ID, syscall.EPERM)
	}
	v, err := d.proposeTo(ctx, d.job.Self, *c)
	var other *raftstore.NotLeaderError
	if errors.As(err, &other) {
		return v, fmt.Errorf("%v: %w", err, node.ErrNotLeader)
	}
	return v, err
}

// maxDigest is the length of an access plan's digest.
const maxDigest = 32

// checkProposal refuses what no other node may propose: a node speaks for the datasets that
// it coordinates, any node sets a plan or removes one for its user, and only the leader changes
// nodes.
func checkProposal(from metadata.NodeID, c *raftstore.Command) error {
	ds := c.Dataset
	switch {
	case c.Kind == raftstore.KindSetPlan && len(ds.Plan) <= maxDigest, c.Kind == raftstore.KindRemoveDataset && len(ds.Error) <= node.MaxErrorText:
		return nil
	case c.Kind == raftstore.KindCopied, c.Kind == raftstore.KindPartner && c.Home == from:
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

func (d *Daemon) controlHandlers() map[wire.Op]rpc.Handler {
	h := map[wire.Op]rpc.Handler{
		wire.OpReport:  node.HandleJSON(d.onReport),
		wire.OpPropose: node.HandleJSON(d.onPropose),
		wire.OpStatus:  node.HandleJSON(d.onStatus),
	}
	maps.Copy(h, d.tasks.Handlers())
	maps.Copy(h, d.datasets.Fills.Handlers())
	maps.Copy(h, d.datasets.Verifier.Handlers())
	maps.Copy(h, d.stager.Handlers())
	return h
}

// Insist repeats fn, a call to node id, while retry accepts its error and the map
// says that the node serves, but not for longer than its patience.
func (d *Daemon) Insist(ctx context.Context, id metadata.NodeID, most time.Duration, retry func(error) bool, fn func() error) error {
	patience := d.patience(most)
	for {
		err := fn()
		if n, _ := d.View().Map.Node(id); err == nil || !retry(err) || !node.Serving(n) {
			return err
		}
		if patience.over() || node.Pause(ctx, insistPause) != nil {
			return err
		}
	}
}

// insistPause is the pause between two tries of Insist.
const insistPause = 100 * time.Millisecond

// patience is how long calls to a node that does not answer are repeated: as long as the
// leader of the group may take to declare the node down. A leader that is elected meanwhile
// starts to count anew, and so does the patience, a few times.
type patience struct {
	d     *Daemon
	begun time.Time
	most  time.Duration
}

// leadersLost is how many leaders may be lost in a row.
const leadersLost = 4

func (d *Daemon) patience(most time.Duration) patience { return patience{d, time.Now(), most} }

func (p patience) over() bool {
	p.d.viewMu.Lock()
	since := p.d.leading.since
	p.d.viewMu.Unlock()
	return p.overAt(time.Now(), since)
}

// overAt is over for a leader that was elected at since.
func (p patience) overAt(at, since time.Time) bool {
	if since.Before(p.begun) {
		since = p.begun
	}
	return at.Sub(since) > p.most || at.Sub(p.begun) > leadersLost*p.most
}
