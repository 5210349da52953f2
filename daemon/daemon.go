package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/ingest"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/member"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/partner"
	"github.com/bivouacfs/bivouac/daemon/plans"
	"github.com/bivouacfs/bivouac/daemon/rebuild"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/fill"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Config configures a daemon, in addition to its job.
type Config struct {
	Job *job.File
	Key rpc.Key
	// Listener is the listener to serve on; nil binds the first free candidate of the job's addresses for this node.
	Listener net.Listener
	// Dial connects to the other nodes; nil means TCP.
	Dial rpc.Dialer
	// Meta returns the stub of another home.
	Meta func(rpc.Caller) metadata.TxPeer
	// Data returns the stub of another node's data.
	Data func(rpc.Caller) datapath.Store
	// Shards returns the stub of another node's shards of directories.
	Shards func(rpc.Caller) metadata.Shards
	// SplitAt is the number of entries at which a directory is split over the nodes; 0 means 131072.
	SplitAt int
	// Source is the file system of the sources; nil means this machine's.
	Source source.FS
	// Window is the memory for dataset files that are read through for lack of room; 0 means 256 MiB per dataset.
	Window int64
	// Disk is the file system for file data; nil means this machine's.
	Disk chunkstore.FS
	// Memory bounds the bytes of other nodes' concurrent reads and writes; 0 means 256 MiB.
	Memory int64
	// Lost is called for each host that was declared lost, on the node that notifies the user; nil: not called.
	Lost   func(host string)
	Log    *logrus.Entry
	Timing Timing
}

// Daemon is a running node.
type Daemon struct {
	cfg     Config
	job     *job.File
	log     *logrus.Entry
	home    *home.Server
	data    *chunkstore.Store
	peers   *rpc.Peers
	network *network
	rpc     *rpc.Server
	calls   node.Handlers // the handlers of this node
	http    *ctlServer
	*member.Member

	ctx    context.Context // ends when the daemon stops
	cancel context.CancelFunc
	wg     sync.WaitGroup
	ready  atomic.Bool // the mount is served
	left   atomic.Bool // Leave was called: the job has ended
	phases phases
	client atomic.Pointer[Client]
	run    metadata.Run

	stageRate, serveRate *rate.Bucket // limits of reads from sources, and of data sent to others; nil: no limit

	meter    meter
	tasks    *tasks.Runner
	out      *stageout.Copier
	notifier *stageout.Notifier
	warn     *warnings
	partials int64 // half-written files removed at the start

	leave    leaving
	datasets *dataset.Datasets
	plans    *plans.Plans
	training *training.Log
	stager   *ingest.Stager

	// copies guards files with two copies; rebuild restores copies that were lost with a node.
	copies  *rebuild.Guard
	rebuild *rebuild.Rebuilder
	// partner keeps copies of homes for copies=2, and stands in for lost ones.
	partner *partner.Partner
}

// Open starts a daemon: when it returns, the node answers the others and reports. The node is not Up before SetReady.
func Open(cfg Config) (*Daemon, error) {
	d := &Daemon{cfg: cfg, job: cfg.Job, log: cfg.Log}
	d.log = cmp.Or(d.log, logrus.NewEntry(logrus.StandardLogger()))
	if err := d.job.Validate(); err != nil {
		return nil, fmt.Errorf("daemon: %w", err)
	}
	d.cfg.Timing.setDefaults(d.job)
	if d.cfg.Source == nil {
		d.cfg.Source = source.OS{}
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.pace()
	d.phases.t = PhaseTimes{Created: d.job.Created, Started: now()}
	d.Member = d.newMember()
	d.copies = rebuild.NewGuard(d.job.Self, d.View)
	d.tasks = tasks.New(d, 2*d.cfg.Timing.Down)
	d.out = stageout.New(stageout.Config{
		Node: d, Tasks: d.tasks, Job: d.job, Every: d.cfg.Timing.Out, Settle: d.cfg.Timing.Settle, Ready: d.ready.Load,
	})
	d.notifier = stageout.NewNotifier(d, d.job)
	d.warn = &warnings{d: d, heard: time.Now()}
	if err := d.open(); err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

func now() metadata.Time { return metadata.TimeOf(time.Now()) }

func (d *Daemon) open() error {
	if err := d.openStores(); err != nil {
		return err
	}
	var err error
	if d.network, err = openRails(d.job.Network); err != nil {
		return err
	}
	ls := []net.Listener{d.cfg.Listener}
	if d.cfg.Listener == nil {
		if ls, err = listen(d.job.Addrs[d.job.Self], d.network.rails); err != nil {
			return err
		}
	}
	if err := d.openNetwork(ls); err != nil {
		closeAll(ls)
		return err
	}
	if err := d.Member.Open(); err != nil {
		return err
	}
	h, err := d.serveCtl()
	if err != nil {
		return err
	}
	d.http = h
	d.home.Start()
	d.partner.Start()
	d.Spawn(d.Member.Run)
	d.Spawn(d.meterLoop)
	d.Spawn(d.warn.run)
	d.Spawn(func(ctx context.Context) {
		d.datasets.Verifier.Scrub(ctx, d.cfg.Timing.Scrub, cmp.Or(d.job.Scrub, 32<<20))
	})
	d.out.Start()
	d.Spawn(d.datasets.Follower.Run)
	d.Spawn(d.datasets.Replicas.Run)
	d.Spawn(d.rebuild.Run)
	d.Spawn(d.plans.Run)
	return nil
}

// Spawn runs f until the daemon stops; Close waits for it.
func (d *Daemon) Spawn(f func(context.Context)) {
	d.wg.Go(func() { f(d.ctx) })
}

// openDatasets creates the parts that deal with datasets.
func (d *Daemon) openDatasets() {
	patience := 2 * d.cfg.Timing.Down
	d.datasets = dataset.New(dataset.Config{
		Ctx: d.ctx, Node: d, Tasks: d.tasks, Job: d.job, Dir: d.dir("stage"), Store: d.data,
		KV:     func(id metadata.DatasetID) dataset.KV { return d.home.Table(id) },
		Remote: d.cfg.Data, Source: d.cfg.Source, Window: d.cfg.Window, Rate: d.serveRate, Copying: rate.New(copyRate, nil),
		Patience: patience, Retry: 4 * d.cfg.Timing.Report,
		Plan: func(ds cluster.Dataset) *accessplan.Plan { return d.plans.Loaded(ds) },
	})
	d.plans = plans.New(d, d.datasets.Files, 4*d.cfg.Timing.Report)
	d.training = training.Open(d, d.dir("training.json"))
	d.stager = ingest.New(ingest.Config{
		Ctx: d.ctx, Node: d, Tasks: d.tasks, Job: d.job, Data: d.datasets, Source: d.cfg.Source, SetPlan: d.plans.Set,
		Report: d.cfg.Timing.Report, Patience: patience,
	})
}

func (d *Daemon) openNetwork(ls []net.Listener) error {
	log := d.log.WithField("part", "rpc")
	newerEpoch := func(metadata.NodeID, metadata.Epoch) { d.Nudge() } // fetches the map at once
	d.calls = d.handlers()
	var err error
	d.peers, err = rpc.NewPeers(rpc.PeersConfig{
		Key: d.cfg.Key, Job: d.job.Name(), Self: d.job.Self, Protect: d.job.Protect, Dial: d.cfg.Dial,
		Addrs: d.addrs, Epoch: d.epoch, NewerEpoch: newerEpoch, Log: log,
	})
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	d.rpc, err = rpc.NewServer(rpc.ServerConfig{
		Key: d.cfg.Key, Job: d.job.Name(), Self: d.job.Self, Protect: d.job.Protect,
		Handlers: d.calls, Inline: inline, Memory: d.cfg.Memory, InlineWhenIdle: alone,
		Stream: d.Member.Stream, Epoch: d.epoch, NewerEpoch: newerEpoch, Log: log,
	})
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	for _, l := range ls {
		d.Spawn(func(context.Context) {
			if err := d.rpc.Serve(l); err != nil && d.ctx.Err() == nil {
				log.WithError(err).Error("no longer accepting connections: other nodes cannot reach this one until its daemon is restarted")
			}
		})
	}
	return nil
}

// dialMember opens a stream to another member of the Raft group.
func (d *Daemon) dialMember(ctx context.Context, id metadata.NodeID) (net.Conn, error) {
	return d.peers.Stream(ctx, id)
}

func (d *Daemon) disconnect(id metadata.NodeID) { d.peers.Disconnect(id) }

func (d *Daemon) addrs(id metadata.NodeID) []string {
	if int(id) >= len(d.job.Addrs) {
		return nil
	}
	return d.network.spread(id, d.job.Addrs[id])
}

func (d *Daemon) epoch() metadata.Epoch { return d.View().Map.Epoch }

// Meta returns this node as the home of its part of the live realm.
func (d *Daemon) Meta() metadata.NodeStore { return d.home }

// Home is like Meta, with the methods that only this process may call.
func (d *Daemon) Home() *home.Server { return d.home }

// Data returns this node's file data. Missing files of a dataset that is being filled are fetched when they are read.
func (d *Daemon) Data() datapath.Store { return localData{d.datasets.Local, d.copies, d.epoch} }

// Out returns this node's part of the stage-outs.
func (d *Daemon) Out() *stageout.Copier { return d.out }

// Datasets returns the datasets whose tree can be read on this node.
func (d *Daemon) Datasets() []cluster.Dataset { return d.datasets.Tables.Readable() }

// Table returns a store that answers metadata calls for a dataset without the network.
func (d *Daemon) Table(id metadata.DatasetID) (metadata.Store, bool) {
	return d.datasets.Tables.Table(id)
}

// Replicas appends to buf the nodes that have a replica of a chunk of owner's file ino.
func (d *Daemon) Replicas(buf []metadata.NodeID, ino metadata.Ino, chunk uint32, owner metadata.NodeID) []metadata.NodeID {
	return d.datasets.Replicas.Where(buf, fill.PieceID{Ino: ino, Chunk: chunk}, owner)
}

// SetReplicasChanged sets f, which is called when the replicas of a dataset are complete on this node, or with the
// replicas that were removed.
func (d *Daemon) SetReplicasChanged(f func(ds metadata.DatasetID, gone []metadata.Ino)) {
	d.datasets.Replicas.SetNotify(f)
}

// Filling reports whether this node still fetches its part of a dataset. The other nodes have made similar progress.
func (d *Daemon) Filling(id metadata.DatasetID) bool {
	ds, ok := d.View().Dataset(id)
	return ok && ds.Phase == cluster.Filling && !d.datasets.Fills.Complete(id)
}

// SetViewed sets viewed, which reports whether a dataset has a kernel view on this node, or soon will.
func (d *Daemon) SetViewed(viewed func(metadata.DatasetID) bool) { d.datasets.Fills.SetViewed(viewed) }

// SetTree sets the observer of datasets, and hidden, which reports whether programs of this node do not see a dataset
// yet. The caller must call Nudge when they do.
func (d *Daemon) SetTree(f dataset.TreeFunc, hidden func(cluster.Dataset) bool) {
	d.datasets.Follower.SetTree(f, hidden)
}

// SetDropPages sets the function that drops cached pages of this node's mount.
func (d *Daemon) SetDropPages(f dataset.DropPagesFunc) { d.datasets.Verifier.SetDropPages(f) }

// StageIn stages a dataset in and returns when its manifest is agreed on.
func (d *Daemon) StageIn(ctx context.Context, s job.Dataset) error { return d.stager.StageIn(ctx, s) }

// beginStageIn enters a dataset in the registry. The function that it returns stages the dataset in.
func (d *Daemon) beginStageIn(ctx context.Context, s job.Dataset) (func(context.Context) error, error) {
	c, err := d.stager.Begin(ctx, s)
	if err != nil {
		return nil, err
	}
	return c.Run, nil
}

// Verify has all nodes verify a dataset, and waits.
func (d *Daemon) Verify(ctx context.Context, s dataset.VerifySpec) (dataset.VerifyResult, error) {
	return d.datasets.Verifier.Verify(ctx, s)
}

// Peers returns the connections to the other nodes.
func (d *Daemon) Peers() *rpc.Peers { return d.peers }

// Caller returns the caller of node id for this node's client: its calls wait until a lost connection is restored, as
// long as the map has not given the node up.
func (d *Daemon) Caller(id metadata.NodeID) rpc.Caller {
	return d.partner.Client(id)
}

// SetReady records that this node's mount is served: from now on the node reports ready.
func (d *Daemon) SetReady() {
	d.phases.setMounted(now())
	d.ready.Store(true)
	d.Nudge()
}

// Close stops everything and waits for it.
func (d *Daemon) Close() error {
	d.cancel()
	if d.http != nil {
		d.http.close()
	}
	if d.Member != nil {
		_ = d.Member.Close()
	}
	if d.rpc != nil {
		_ = d.rpc.Close()
	}
	if d.peers != nil {
		d.peers.Close()
	}
	d.wg.Wait() // the coordinator of a stage-in may still start a share here
	if d.training != nil {
		d.training.Save()
	}
	errs := closeData(d)
	if d.partner != nil {
		errs = append(errs, d.partner.Close())
	}
	if d.home != nil {
		errs = append(errs, d.home.Close())
	}
	return errors.Join(errs...)
}
