package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	daemonout "github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/daemon/training"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/deploy/mounts"
	"github.com/bivouacfs/bivouac/fsclient"
	"github.com/bivouacfs/bivouac/fsclient/mount"
	"github.com/bivouacfs/bivouac/fsclient/remote"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/stageout"
)

// node is a daemon with its client and its mount, wired together.
type node struct {
	job    *job.File
	log    *logrus.Entry
	daemon *daemon.Daemon
	client *fsclient.Client
	mount  *mount.Mount
	memory daemon.Memory // the most that the node takes
	backer mount.Backer  // nil: the mount registers files with the kernel itself
	ended  chan struct{} // closed when the mount has ended
	covers *covers
	ahead  *prefetchers
	// watched is set if a keeper expects reports that the mount answers.
	watched bool
	kept    bool // another daemon can take the connection over
}

func openNode(job *job.File, start daemon.Start, lost func(string), log *logrus.Entry) (*node, error) {
	key, err := parseKey(start.Key)
	if err != nil {
		return nil, err
	}
	syscall.Umask(0)
	raiseFiles(log)
	l, err := inheritedListener(start)
	if err != nil {
		return nil, err
	}
	raiseProcs()
	spareCollector()
	n := &node{job: job, log: log, memory: boundMemory(job, log), ended: make(chan struct{}), watched: !start.Detached, kept: start.Handover}
	if start.Backing {
		if n.backer, err = daemon.NewBacking(os.NewFile(daemon.BackingFD, "backing"), job.Dirs.Store); err != nil {
			return nil, err
		}
	}
	n.daemon, err = daemon.Open(daemon.Config{
		Job: job, Key: key, Listener: l, Log: log, Memory: n.memory.Serving, Lost: lost,
		Meta:   func(c rpc.Caller) metadata.TxPeer { return remote.NewStore(c) },
		Data:   func(c rpc.Caller) datapath.Store { return remote.NewData(c) },
		Shards: func(c rpc.Caller) metadata.Shards { return remote.NewStore(c) },
	})
	if err != nil {
		return nil, err
	}
	if err := n.openMount(start); err != nil {
		if n.client != nil {
			n.client.Close()
		}
		_ = n.daemon.Close()
		return nil, err
	}
	return n, nil
}

func (n *node) openMount(start daemon.Start) error {
	d := n.daemon
	var err error
	n.client, err = fsclient.New(fsclient.Config{
		Self: n.job.Self, Local: d.Meta(), LocalData: d.Data(), View: d.View, Sealed: d, Replicas: d.Replicas, Log: n.log,
		UID: n.job.UID, GID: n.job.GID, Now: time.Now, Run: d.Run(), VerifyReads: n.job.VerifyReads,
		Meta: func(id metadata.NodeID) metadata.NodeStore { return remote.NewStore(d.Caller(id)) },
		Data: func(id metadata.NodeID) datapath.Store { return remote.NewData(d.Caller(id)) },
	})
	if err != nil {
		return err
	}
	d.Out().SetCopy(n.stageOut, n.copyPiece)
	d.SetClient(n.client)
	dir := n.job.Dirs.Mount
	var handover *os.File
	if start.Handover {
		handover = os.NewFile(daemon.HandoverFD, "handover")
		defer handover.Close()
	}
	if start.Fuse {
		dir = fmt.Sprintf("/dev/fd/%d", daemon.FuseFD)
	}
	n.covers, n.ahead = newCovers(n, n.covererOf(start)), newPrefetchers(n)
	n.mount, err = mount.New(mount.Config{
		Client: n.client, Dir: dir, Point: n.job.Dirs.Mount, AllowOther: start.Fuse || os.Geteuid() == 0, UID: n.job.UID, GID: n.job.GID,
		Virtual: n.virtual, Backer: n.backer, Prefetch: n.ahead.of, Log: n.log.WithField("part", "mount"),
		Hidden: n.covers.hidden, HelperGID: mounts.HelperGID,
		Handover: handover, Adopt: start.Adopt, Unsettled: start.Adopt,
	})
	if err != nil {
		return fmt.Errorf("mount %s: %w", n.job.Dirs.Mount, err)
	}
	d.SetRevoke(n.client.Revoke) // the kernel can be notified from now on
	d.SetActivity(n.activity)
	d.SetDropPages(func(inos []metadata.Ino) {
		n.mount.DropPages(inos)
		n.covers.invalidate(inos)
	})
	d.SetReplicasChanged(func(ds metadata.DatasetID, gone []metadata.Ino) {
		n.mount.Forget(gone)
		n.covers.replaced(ds, len(gone) > 0)
	})
	if n.log.Logger.IsLevelEnabled(logrus.DebugLevel) {
		log := n.log.WithField("part", "mount")
		n.mount.Trace(func(r mount.Request) { logRequest(log, r) })
	}
	if start.Adopt {
		n.settle()
	}
	go func() {
		defer close(n.ended)
		n.mount.Serve()
	}()
	if err := n.mount.Ready(); err != nil {
		return fmt.Errorf("mount %s: %w", n.job.Dirs.Mount, err)
	}
	d.Plans().SetState(n.ahead.state)
	d.SetViewed(n.covers.viewed)
	d.SetTree(func(ds cluster.Dataset, sum manifest.Summary) {
		n.ahead.see(ds)
		n.covers.see(ds, sum)
	}, n.covers.hidden)
	return nil
}

func logRequest(log *logrus.Entry, r mount.Request) {
	log = log.WithFields(logrus.Fields{"ino": r.Ino, "pid": r.Pid, "what": r.What, "took": r.Took})
	if r.Error != nil {
		log = log.WithError(r.Error)
	}
	log.Debug(r.Op)
}

// virtual returns the content of a file of .bivouac.
func (n *node) virtual(name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	switch name {
	case "control": // the address at which programs of the job reach this daemon
		return []byte(n.job.CtlSocket() + "\n"), nil
	case "status":
		return indented(n.daemon.Status(ctx))
	case "map":
		return indented(n.daemon.View())
	case "stats":
		return indented(map[string]any{"client": n.client.Stats(), "mount": n.mount.Stats(), "rpc": n.daemon.Peers().Stats(), "memory": n.memory})
	}
	return nil, syscall.ENOENT
}

// activity returns the counters of the mount and its client.
func (n *node) activity() daemon.Activity {
	c, m := n.client.Stats(), n.mount.Stats()
	a := daemon.Activity{
		Traffic: daemon.Traffic{
			ReadLocal: c.ReadLocal, ReadRemote: c.ReadRemote, WriteLocal: c.WriteLocal, WriteRemote: c.WriteRemote,
			Passthrough: m.Passthrough, Prefetched: m.Prefetched,
		},
		MetaLocal: c.MetaLocal, MetaRemote: c.MetaRemote, MetaSealed: c.MetaSealed,
		Times:   make(map[string]training.Waits, len(m.Latency)),
		Sources: n.sources(),
		Reads:   reads(n.client.DatasetReads(), m.Datasets),
	}
	n.covers.opens.addTo(a.Reads)
	for op, l := range m.Latency {
		a.Times[op] = waits(&l)
	}
	return a
}

func waits(l *mount.Latency) training.Waits {
	n, first, sum := l.Buckets()
	return training.Waits{First: first.Seconds(), Buckets: n, Seconds: sum.Seconds()}
}

// reads returns the reads of the client and the mount, by dataset.
func reads(places map[metadata.DatasetID]stripe.DatasetReads, times map[metadata.DatasetID]mount.ReadTimes) map[metadata.DatasetID]training.Reads {
	all := make(map[metadata.DatasetID]training.Reads)
	for id, x := range places {
		r := all[id]
		for p, to := range map[stripe.Place]*training.Count{stripe.Own: &r.Local, stripe.Replica: &r.Replica, stripe.Remote: &r.Remote, stripe.Source: &r.Source} {
			*to = training.Count{Samples: x.Samples[p], Bytes: x.Bytes[p]}
		}
		all[id] = r
	}
	for id, t := range times {
		r := all[id]
		r.Waits, r.First = waits(&t.Latency), t.First
		all[id] = r
	}
	return all
}

// sources returns the client's measurements of the places from which it reads datasets.
func (n *node) sources() []daemon.SourceStatus {
	var all []daemon.SourceStatus
	for _, s := range n.client.Sources() {
		place := ""
		switch {
		case s.Place == sources.Source:
			place = "source"
		case s.Place == n.job.Self:
			place = "this node"
		default:
			place = n.job.Hosts[s.Place]
		}
		all = append(all, daemon.SourceStatus{
			Place: place, State: string(s.State), Latency: s.Latency, Bandwidth: s.Bandwidth, Share: s.Share,
			Reads: s.Reads, Replicas: s.Replicas, Failures: s.Failures, Bytes: s.Bytes, Outstanding: s.Outstanding,
		})
	}
	return all
}

func indented(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}

func (n *node) stageOut(ctx context.Context, s daemonout.Share) (stageout.Result, error) {
	root, err := n.client.Resolve(ctx, metadata.RootIno, s.From)
	var no syscall.Errno
	if errors.As(err, &no) {
		return stageout.Result{}, fmt.Errorf("scratch/%s: %w", s.From, no)
	}
	if err != nil {
		return stageout.Result{}, err
	}
	return stageout.Run(ctx, stageout.Config{
		Store: n.client, Read: n.client.ReadFile, Root: root, To: s.To, Name: path.Base(s.From), Self: s.Self, N: s.N,
		Settle: s.Settle, Memory: s.Memory, Trust: s.Trust, Help: s.Help, Writer: s.Writer, Gone: s.Gone, Failed: s.Failed,
	})
}

func (n *node) copyPiece(ctx context.Context, p stageout.Piece) error {
	return stageout.CopyPiece(ctx, n.client.ReadFile, p)
}

// up waits for the whole job, then reports it on the heartbeat connection.
func (n *node) up(ctx context.Context, heartbeat *daemon.Heartbeat) error {
	n.daemon.SetReady()
	if err := n.daemon.WaitUp(ctx); err != nil {
		return err
	}
	return heartbeat.Send(daemon.Note{Ready: true, Kept: n.kept})
}

// serve serves until the end: an order to leave, a closed heartbeat connection, a signal, or an unmount by another
// process.
func (n *node) serve(ctx context.Context, heartbeat *daemon.Heartbeat, orders <-chan daemon.Order) error {
	alive := time.NewTicker(n.job.Heartbeat())
	defer alive.Stop()
	probed := make(chan bool, 1) // the answer of the one probe in flight
	left := make(chan error, 1)  // the result of the one leave
	ended, busy, leaving := n.ended, false, false
	for {
		select {
		case <-ctx.Done():
			if leaving {
				<-left // it ends with ctx, and must end before the stores are closed
			}
			return nil
		case <-ended:
			if !leaving {
				return nil
			}
			ended = nil // stage-out does not go through the mount
		case o, ok := <-orders:
			if !ok {
				return errKeeperGone
			}
			if o.Leave && !leaving { // meanwhile the keeper gets signs of life
				leaving = true
				go func() { left <- n.leave(ctx, heartbeat, o) }()
			}
		case err := <-left:
			return err
		case <-alive.C:
			if n.watched && !busy {
				busy = true
				go func() { probed <- n.probe() }()
			}
		case ok := <-probed:
			busy = false
			if ok {
				_ = heartbeat.Send(daemon.Note{Alive: true}) // if the keeper died, the connection closes
			}
		}
	}
}

// probe accesses the mount through the kernel, as an application would. It asks for something that only this node must
// answer: a hanging peer must not make the keepers of all other nodes believe that their daemons hang.
func (n *node) probe() bool {
	_, err := os.Lstat(filepath.Join(n.job.Dirs.Mount, ".bivouac", "no such file"))
	return errors.Is(err, fs.ErrNotExist)
}

func (n *node) leave(ctx context.Context, heartbeat *daemon.Heartbeat, o daemon.Order) error {
	if o.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(o.Deadline)*time.Second)
		defer cancel()
	}
	note := daemon.Note{Left: true}
	if err := n.daemon.Leave(ctx); err != nil {
		n.log.WithError(err).Error("stage-out incomplete: the job's output names the files that were not copied")
		note.Trouble = err.Error()
	}
	for _, ds := range n.daemon.View().Datasets {
		if ds.Phase == cluster.Failed && note.Trouble == "" { // keep the log
			note.Trouble = fmt.Sprintf("stage-in of %s failed: %s", ds.Source, ds.Error)
		}
	}
	note.Trouble = note.Trouble[:min(len(note.Trouble), maxTrouble)]
	return heartbeat.Send(note)
}

// maxTrouble bounds the trouble in a note to the keeper, in bytes; the log has all of it.
const maxTrouble = 8 << 10

// close unmounts first, so that no process waits for a stopping daemon.
func (n *node) close() {
	signal.Ignore(syscall.SIGTERM, os.Interrupt)
	n.covers.stop()
	n.ahead.stop()
	if err := n.mount.Unmount(); err != nil {
		n.log.WithError(err).Warn("could not unmount: the keeper, or bivouac down, tries again")
	}
	n.covers.wait()
	n.client.Close()
	if err := n.daemon.Close(); err != nil {
		n.log.WithError(err).Warn("could not close all stores: the next daemon on them recovers")
	}
}

// raiseFiles raises the limit on open files as far as possible.
func raiseFiles(log *logrus.Entry) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err == nil && r.Cur < r.Max {
		r.Cur = r.Max
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
			log.WithError(err).Debug("could not raise the limit on open files")
		}
	}
}
