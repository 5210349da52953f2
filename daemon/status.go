package daemon

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// phases holds the PhaseTimes of this node.
type phases struct {
	mu sync.Mutex
	t  PhaseTimes // under mu
}

// PhaseTimes are the times of the steps of a node's start; zero means not yet.
type PhaseTimes struct {
	Created metadata.Time `json:"created"` // the prolog started
	Started metadata.Time `json:"started"` // the daemon started
	Mounted metadata.Time `json:"mounted"` // the mount was served
	Up      metadata.Time `json:"up"`      // the map was complete
}

func (p *phases) setMounted(t metadata.Time) { p.mu.Lock(); p.t.Mounted = t; p.mu.Unlock() }
func (p *phases) setUp(t metadata.Time)      { p.mu.Lock(); p.t.Up = t; p.mu.Unlock() }

func (p *phases) times() PhaseTimes { p.mu.Lock(); defer p.mu.Unlock(); return p.t }

// Status answers GET /v1/status.
type Status struct {
	Job     string          `json:"job"`
	Restart int             `json:"restart"`
	Self    metadata.NodeID `json:"self"`
	Host    string          `json:"host"`
	Mount   string          `json:"mount"`
	Wait    string          `json:"wait,omitempty"`
	Epoch   metadata.Epoch  `json:"epoch"`
	Leader  metadata.NodeID `json:"leader"`
	Closing bool            `json:"closing,omitempty"`
	// Silence is the time in seconds without an answer from a leader: the control group has no quorum, or this node is
	// cut off from it. This status then shows an old view.
	Silence  float64         `json:"silence,omitempty"`
	Ready    bool            `json:"ready"` // the map is complete and the mount is served
	Phases   PhaseTimes      `json:"phases"`
	Space    datapath.Space  `json:"space"` // of this node
	Nodes    []NodeStatus    `json:"nodes"`
	Datasets []DatasetStatus `json:"datasets"`
	// Wanted lists the datasets of the job file; one that is missing from Datasets has not been started yet.
	Wanted []string        `json:"wanted,omitempty"`
	Shares int             `json:"shares,omitempty"` // tasks that run on this node now
	RPC    rpc.ServerStats `json:"rpc"`
	// Traffic is the data moved by the mount of this node, and Rates its recent rates per second.
	Traffic Traffic `json:"traffic"`
	Rates   Rates   `json:"rates"`
	// Sources lists the places from which this node has read datasets, with their speeds.
	Sources []SourceStatus `json:"sources,omitempty"`
	// Paces holds the rate limits of this node.
	Paces Paces `json:"paces,omitzero"`
	// Swept counts the leftovers that this node has removed.
	Swept home.Sweep `json:"swept"`
	// Scrub holds the results of this node's scrub of datasets.
	Scrub dataset.ScrubStats `json:"scrub"`
	// Corrupt counts the blocks of scratch data on this node's drives that differed from their checksums.
	Corrupt int64 `json:"corrupt_blocks,omitempty"`
	// OneCopy counts the files and bytes of all nodes that have lost a copy with a node; nil if there are none.
	OneCopy *OneCopy `json:"one_copy,omitempty"`
	// StageOut is the progress of this node's part of each stage-out.
	StageOut []stageout.Status `json:"stage_out,omitempty"`
}

// OneCopy counts scratch files with copies=2 that have only one copy left. A striped file counts once per part.
type OneCopy struct {
	Files   int64 `json:"files"`
	Bytes   int64 `json:"bytes"`
	Waiting int64 `json:"waiting,omitempty"` // parts of files whose home does not answer: examined when it does
	Nodes   int   `json:"nodes"`             // nodes that still look for such files, or copy them
}

// NodeStatus is a node of the job.
type NodeStatus struct {
	ID    metadata.NodeID `json:"id"`
	Host  string          `json:"host"`
	State cluster.State   `json:"state"`
	Addr  string          `json:"addr,omitempty"`
	// Switch is the leaf switch of the node; "": unknown.
	Switch string `json:"switch,omitempty"`
	Lost   bool   `json:"lost,omitempty"` // it was up and is down now: scratch files that were only there are lost
	// Names is the location of the names of the node's files; nil if no directory has asked for two copies.
	Names *cluster.Names `json:"names,omitempty"`
	// Load is from the node's last report; nil if the leader has no report, or cannot be reached.
	Load *leader.Load `json:"load,omitempty"`
}

// DatasetStatus is a dataset with its progress.
type DatasetStatus struct {
	cluster.Dataset
	// Ready says that the dataset is sealed and readable on this node: a node that was away must fetch the manifest
	// first.
	Ready bool `json:"ready"`
	// Readable says that the dataset's whole tree can be read on all nodes, although some files may have to be fetched
	// first.
	Readable bool              `json:"readable"`
	Total    int64             `json:"total,omitempty"`     // bytes of the source, while it is staged
	Progress *stagein.Progress `json:"progress,omitempty"`  // while it is staged
	PerNode  []NodeShare       `json:"per_node,omitempty"`  // once it is published
	Striped  *NodeShare        `json:"striped,omitempty"`   // files whose stripes are on several nodes
	InSource *NodeShare        `json:"in_source,omitempty"` // overflow from the start: on no node, read through
	// Unreadable lists overflow that some node could not read from the source, the first files of each node;
	// MoreUnreadable counts the unlisted ones.
	Unreadable     []leader.UnreadableFile `json:"unreadable,omitempty"`
	MoreUnreadable int64                   `json:"more_unreadable,omitempty"`
	// Overflow counts the files that nodes own and do not store.
	Overflow []leader.Overflow `json:"overflow,omitempty"`
	// Training says how the dataset is read; nil if nothing is known, or if the request does not ask for it.
	Training *TrainingStatus `json:"training,omitempty"`
	// Copies is the nodes' progress with replicas of the dataset's files, once they have begun.
	Copies *CopiesStatus `json:"copies,omitempty"`
}

// CopiesStatus is the progress of all nodes with the replicas of a dataset: exact for this node, in steps of 1/64 for
// the others.
type CopiesStatus struct {
	Files   int64           `json:"files"` // replicas present
	Bytes   int64           `json:"bytes"`
	OfFiles int64           `json:"of_files"` // replicas wanted
	OfBytes int64           `json:"of_bytes"`
	Given   int64           `json:"given,omitempty"` // bytes given back to other files
	Full    []string        `json:"full,omitempty"`  // hosts without room for more
	PerNode []replicas.Mark `json:"per_node"`
}

// Current returns the datasets that a user means by their names, as cluster.Current does.
func (s *Status) Current() (all []DatasetStatus) {
	known := make([]cluster.Dataset, len(s.Datasets))
	for i := range s.Datasets {
		known[i] = s.Datasets[i].Dataset
	}
	for _, ds := range cluster.Current(known) {
		i := slices.IndexFunc(s.Datasets, func(x DatasetStatus) bool { return x.ID == ds.ID })
		all = append(all, s.Datasets[i])
	}
	return all
}

// NodeShare is one node's share of a dataset.
type NodeShare struct {
	Host  string `json:"host"`
	Files int64  `json:"files"`
	Bytes int64  `json:"bytes"`
}

type statusReq struct {
	Dataset metadata.DatasetID `json:"dataset,omitempty"`
	Fill    bool               `json:"fill,omitempty"` // the nodes' progress with fetching its files
	// Incomplete asks for the files that the nodes could not read from the source, and for the files that they do not
	// store.
	Incomplete bool `json:"incomplete,omitempty"`
	Loads      bool `json:"loads,omitempty"` // space and traffic of the nodes
}

// statusReply is the progress of a stage-in.
type statusReply struct {
	Progress stagein.Progress `json:"progress"`
	Total    int64            `json:"total"`

	Unreadable []leader.UnreadableFile `json:"unreadable,omitempty"`
	More       int64                   `json:"more,omitempty"` // unlisted files
	Overflow   []leader.Overflow       `json:"overflow,omitempty"`

	Loads map[metadata.NodeID]leader.Load `json:"loads,omitempty"`
}

// onStatus answers with the progress of a stage-in that this node leads.
func (d *Daemon) onStatus(_ context.Context, _ metadata.NodeID, q *statusReq) (statusReply, error) {
	var r statusReply
	switch {
	case q.Incomplete:
		m := d.View().Map
		r.Unreadable, r.More = d.Lead().Unreadable(m, q.Dataset)
		r.Overflow = d.Lead().Overflow(m, q.Dataset)
	case q.Loads:
		r.Loads = d.Lead().Loads(d.View().Map)
	case q.Fill:
		r.Progress = d.Lead().FillProgress(q.Dataset)
		r.Total = r.Progress.SourceTotal
	default:
		r.Progress, r.Total = d.stager.Progress(q.Dataset)
	}
	return r, nil
}

// statusTime bounds how long Status waits for other nodes: a hung node must not make this one look hung.
// look as if it hangs.
const statusTime = time.Second

// Status returns the status of the job, as this node sees it.
func (d *Daemon) Status(ctx context.Context) Status {
	v := d.View()
	s := Status{
		Job: d.job.ID, Restart: d.job.Restart, Self: d.job.Self, Host: d.job.Hosts[d.job.Self],
		Mount: d.job.Dirs.Mount, Wait: d.job.Wait, Epoch: v.Map.Epoch, Leader: d.Leader(), Closing: v.Closing,
		Ready:  d.ready.Load() && v.Version > 0 && !leader.Joining(v.Map),
		Phases: d.phases.times(),
	}
	s.Space, _ = d.data.Space(ctx) // zeros if the store cannot tell
	for _, n := range v.Map.Nodes {
		x := NodeStatus{ID: n.ID, Host: n.Host, State: n.State, Addr: n.Addr, Switch: n.Switch, Lost: n.State == cluster.Down && len(n.Terms) > 0}
		if v.Copied {
			names := v.Map.Names(n.ID)
			x.Names = &names
		}
		s.Nodes = append(s.Nodes, x)
	}
	for _, w := range d.job.Datasets {
		s.Wanted = append(s.Wanted, w.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, statusTime)
	defer cancel()
	s.Silence = d.warn.silence(time.Now()).Seconds()
	for _, ds := range v.Datasets {
		s.Datasets = append(s.Datasets, d.datasetStatus(ctx, ds))
	}
	s.Shares, s.RPC = d.tasks.Running(), d.rpc.Stats()
	s.Traffic, s.Rates = d.meter.read(time.Now())
	s.addLoads(ctx, d)
	s.addOneCopy(v)
	if a, ok := d.meter.activity(); ok {
		s.Sources = a.Sources
	}
	s.Paces = Paces{d.stageRate.Stats(), d.serveRate.Stats()}
	s.Scrub, s.Corrupt = d.datasets.Verifier.Scrubbed(), d.data.Corrupt()
	s.StageOut, s.Swept = d.out.Status(), d.home.Swept()
	s.Swept.Files = d.partials
	return s
}

// addLoads adds the space and traffic of the nodes: this node's current values, and the others' values last reported to
// the leader.
func (s *Status) addLoads(ctx context.Context, d *Daemon) {
	var r statusReply
	if d.Call(ctx, d.Leader(), wire.OpStatus, statusReq{Loads: true}, &r) != nil {
		r.Loads = nil // there is no leader now
	}
	for i := range s.Nodes {
		l, ok := r.Loads[s.Nodes[i].ID]
		if s.Nodes[i].ID == s.Self {
			l, ok = leader.Load{Space: s.Space, Traffic: s.Traffic, Rates: s.Rates, Rebuilt: d.rebuild.Mark()}, true
		}
		if ok {
			s.Nodes[i].Load = &l
		}
	}
}

// addOneCopy sums up the nodes' remaining copies.
func (s *Status) addOneCopy(v cluster.View) {
	if !v.Copied || v.Closing || !v.Map.Unrestored() {
		return
	}
	s.OneCopy = new(OneCopy)
	for _, n := range s.Nodes {
		if n.Load == nil || n.State == cluster.Down || n.Load.Rebuilt.Epoch >= v.Map.Changed() {
			continue
		}
		m := n.Load.Rebuilt
		s.OneCopy.Nodes++
		s.OneCopy.Files, s.OneCopy.Bytes, s.OneCopy.Waiting = s.OneCopy.Files+m.Files, s.OneCopy.Bytes+m.Bytes, s.OneCopy.Waiting+m.Waiting
	}
}

func (d *Daemon) datasetStatus(ctx context.Context, ds cluster.Dataset) DatasetStatus {
	s := DatasetStatus{Dataset: ds}
	ask := func(node metadata.NodeID, q statusReq) {
		var r statusReply
		if d.Call(ctx, node, wire.OpStatus, q, &r) == nil {
			s.Progress, s.Total = &r.Progress, r.Total
		}
	}
	switch ds.Phase {
	case cluster.Staging:
		ask(ds.Coordinator, statusReq{Dataset: ds.ID})
	case cluster.Filling:
		ask(d.Leader(), statusReq{Dataset: ds.ID, Fill: true})
	}
	sum, here, ok := d.datasets.Tables.Summary(ds)
	if !ok {
		return s
	}
	s.Readable = here && (ds.Phase == cluster.Filling || ds.Phase == cluster.Sealed)
	s.Ready = here && ds.Phase == cluster.Sealed
	if st := sum.Striped; st.Files > 0 {
		s.Striped = &NodeShare{Host: "all nodes", Files: st.Files, Bytes: st.Bytes}
	}
	if sp := sum.Overflow; sp.Files > 0 {
		s.InSource = &NodeShare{Host: "source", Files: sp.Files, Bytes: sp.Bytes}
	}
	s.Copies = d.copiesStatus(ds.ID)
	if ds.Fill || s.InSource != nil {
		d.addIncomplete(ctx, &s)
	}
	for _, n := range d.View().Map.Nodes {
		sh := sum.PerNode[n.ID]
		s.PerNode = append(s.PerNode, NodeShare{Host: n.Host, Files: sh.Files, Bytes: sh.Bytes})
	}
	return s
}

// copiesStatus sums up the marks of all nodes; nil if there are none.
func (d *Daemon) copiesStatus(id metadata.DatasetID) *CopiesStatus {
	marks := d.datasets.Replicas.Marks(id)
	if len(marks) == 0 {
		return nil
	}
	s := &CopiesStatus{PerNode: marks}
	for _, m := range marks {
		s.Files, s.Bytes, s.Given = s.Files+m.Files, s.Bytes+m.Bytes, s.Given+m.Given
		s.OfFiles, s.OfBytes = s.OfFiles+m.OfFiles, s.OfBytes+m.OfBytes
		if n, ok := d.View().Map.Node(m.Node); ok && m.Full {
			s.Full = append(s.Full, n.Host)
		}
	}
	return s
}

// addIncomplete adds the incomplete files: those of other nodes as reported to the leader, those of this node as of
// now.
func (d *Daemon) addIncomplete(ctx context.Context, s *DatasetStatus) {
	var r statusReply
	if d.Call(ctx, d.Leader(), wire.OpStatus, statusReq{Dataset: s.ID, Incomplete: true}, &r) != nil {
		r = statusReply{} // there is no leader now
	}
	self := d.job.Hosts[d.job.Self]
	s.Unreadable = slices.DeleteFunc(r.Unreadable, func(u leader.UnreadableFile) bool { return u.Host == self })
	s.MoreUnreadable, s.Overflow = r.More, r.Overflow
	all, more, ok := d.datasets.Fills.Unreadable(s.ID)
	if !ok {
		return
	}
	for _, u := range all {
		s.Unreadable = append(s.Unreadable, leader.UnreadableFile{Host: self, Unreadable: u})
	}
	s.MoreUnreadable = max(s.MoreUnreadable, more)
}
