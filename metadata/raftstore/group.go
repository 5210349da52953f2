package raftstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/sirupsen/logrus"
	"go.etcd.io/bbolt"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Config configures a member. Members and Initial must be the same on all members, and after a restart.
type Config struct {
	Dir     string            // of the store
	Self    metadata.NodeID   // one of Members
	Members []metadata.NodeID // all voting members
	Initial cluster.View      // View before the first agreement
	// Dial opens an authenticated stream to a member, whose Accept receives it. It must heed ctx.
	Dial   func(ctx context.Context, id metadata.NodeID) (net.Conn, error)
	Timing Timing
	Log    *logrus.Entry
}

// Timing has the timeouts of a member. Zero values are the defaults, for a local network and busy hosts.
type Timing struct {
	Heartbeat time.Duration // silence after which followers suspect the leader; 250 ms, 20 ms in a group of one
	Election  time.Duration // how long a candidate waits for votes; 500 ms, 20 ms in a group of one
	Commit    time.Duration // latest time at which a follower learns of a commit; half of Heartbeat, but 50 ms at most
	Call      time.Duration // bound of a dial, and of a message with its answer; 2 s
	Close     time.Duration // bound of Close; 10 s
}

func (c *Config) validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("no directory"))
	}
	if !slices.Contains(c.Members, c.Self) {
		errs = append(errs, fmt.Errorf("node %d is none of the members %v", c.Self, c.Members))
	}
	if s := slices.Sorted(slices.Values(c.Members)); len(slices.Compact(s)) != len(c.Members) {
		errs = append(errs, fmt.Errorf("a member is twice in %v", c.Members))
	}
	if c.Dial == nil && len(c.Members) > 1 {
		errs = append(errs, errors.New("no way to dial"))
	}
	c.Log = cmp.Or(c.Log, logrus.NewEntry(&logrus.Logger{Out: io.Discard}))
	c.Timing.setDefaults(len(c.Members))
	return errors.Join(errs...)
}

func (t *Timing) setDefaults(members int) {
	heartbeat, election := 250*time.Millisecond, 500*time.Millisecond
	if members == 1 { // no other members
		heartbeat, election = 20*time.Millisecond, 20*time.Millisecond
	}
	for _, d := range []struct {
		p *time.Duration
		d time.Duration
	}{{&t.Heartbeat, heartbeat}, {&t.Election, max(election, t.Heartbeat)}, {&t.Call, 2 * time.Second}, {&t.Close, 10 * time.Second}} {
		if *d.p == 0 {
			*d.p = d.d
		}
	}
	t.Commit = cmp.Or(t.Commit, min(50*time.Millisecond, t.Heartbeat/2))
}

// Group is this node's membership in the control group.
type Group struct {
	cfg     Config
	store   *raftboltdb.BoltStore
	streams *streams
	board   *board
	raft    *raft.Raft
	trans   *raft.NetworkTransport

	observations chan raft.Observation // a few; the reader asks Raft for the state anyway
	observer     *raft.Observer
	watching     sync.WaitGroup
	proposals    sync.WaitGroup
	done         chan struct{} // closed when Close has begun

	mu       sync.Mutex
	closed   bool          // guarded by mu
	leadings chan struct{} // closed when the leader changes; guarded by mu
}

// Open joins the group. With an empty store it starts with the members of the Config, like every member.
func Open(cfg Config) (*Group, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("raft group: %w", err)
	}
	s, err := openStore(cfg.Dir)
	if err != nil {
		return nil, err
	}
	g := &Group{
		cfg: cfg, store: s, streams: newStreams(cfg.Self, cfg.Dial), board: newBoard(cfg.Initial),
		observations: make(chan raft.Observation, 8), done: make(chan struct{}), leadings: make(chan struct{}),
	}
	if err := g.start(); err != nil {
		_ = g.streams.Close() // never fails
		return nil, errors.Join(err, s.Close())
	}
	return g, nil
}

// Memory bounds the memory of a group's store: the pages of the log that are being written.
const Memory = 1 << 20

const (
	keptSnapshots = 2
	// openTime is how long Open waits for a process of an earlier run to exit.
	openTime = 5 * time.Second
)

// openStore opens the log and the stable store, which are synced to the disk before Raft acts on them.
func openStore(dir string) (*raftboltdb.BoltStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("raft store: %w", err)
	}
	s, err := raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(dir, "log"), MsgpackUseNewTimeFormat: true,
		BoltOptions: &bbolt.Options{Timeout: openTime, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if err != nil {
		return nil, fmt.Errorf("raft store %s: %w", dir, err)
	}
	return s, nil
}

func (g *Group) start() error {
	logger := raftLogger(g.cfg.Log)
	snaps, err := raft.NewFileSnapshotStoreWithLogger(g.cfg.Dir, keptSnapshots, logger)
	if err != nil {
		return fmt.Errorf("raft snapshots: %w", err)
	}
	g.trans = raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Stream: g.streams, MaxPool: 3, Timeout: g.cfg.Timing.Call, Logger: logger, MsgpackUseNewTimeFormat: true,
	})
	conf := g.raftConfig()
	conf.Logger = logger
	err = g.bootstrap(conf, snaps, g.trans)
	if err == nil {
		g.raft, err = raft.NewRaft(conf, fsm{g.board}, g.store, g.store, snaps, g.trans)
	}
	if err != nil {
		_ = g.trans.Close() // never fails
		return fmt.Errorf("raft: %w", err)
	}
	g.observer = raft.NewObserver(g.observations, false, func(o *raft.Observation) bool {
		switch o.Data.(type) {
		case raft.LeaderObservation, raft.RaftState:
			return true
		}
		return false
	})
	g.raft.RegisterObserver(g.observer)
	g.watching.Go(g.watch)
	return nil
}

func (g *Group) raftConfig() *raft.Config {
	c := raft.DefaultConfig()
	t := g.cfg.Timing
	c.LocalID = raft.ServerID(address(g.cfg.Self))
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = t.Heartbeat, t.Election, t.Heartbeat
	c.CommitTimeout = t.Commit
	c.SnapshotThreshold, c.TrailingLogs, c.SnapshotInterval = 1024, 256, 30*time.Second
	c.NoLegacyTelemetry = true
	return c
}

// bootstrap writes the first configuration into an empty store.
func (g *Group) bootstrap(conf *raft.Config, snaps raft.SnapshotStore, trans raft.Transport) error {
	has, err := raft.HasExistingState(g.store, g.store, snaps)
	if err != nil || has {
		return err
	}
	var members raft.Configuration
	for _, id := range g.cfg.Members {
		members.Servers = append(members.Servers, raft.Server{ID: raft.ServerID(address(id)), Address: address(id)})
	}
	return raft.BootstrapCluster(conf, g.store, g.store, snaps, trans, members)
}

// watch publishes changes of the leader.
func (g *Group) watch() {
	for {
		select {
		case <-g.observations:
			g.mu.Lock()
			close(g.leadings)
			g.leadings = make(chan struct{})
			g.mu.Unlock()
		case <-g.done:
			return
		}
	}
}

// Accept takes a stream that another member has dialed.
func (g *Group) Accept(conn net.Conn) { g.streams.put(conn) }

// View returns the agreed View, as far as this member knows it.
func (g *Group) View() cluster.View { return g.board.get() }

// Changed returns a channel that is closed at the next change of View.
func (g *Group) Changed() <-chan struct{} { return g.board.wait() }

// Leader returns the leader, if this member knows it.
func (g *Group) Leader() (metadata.NodeID, bool) {
	_, id := g.raft.LeaderWithID()
	n, err := idOf(string(id))
	return n, err == nil
}

// IsLeader reports whether this member leads the group. It may not have applied earlier commands yet; its proposals are
// applied after them.
func (g *Group) IsLeader() bool { return g.raft.State() == raft.Leader }

// Term returns the current term of the group, as far as this member knows it. At most one member leads in a term.
func (g *Group) Term() uint64 { return g.raft.CurrentTerm() }

// Close leaves the group: it waits for the answers to proposals, and closes streams and store. It returns an error if
// that takes too long; then the store stays open until the process ends.
func (g *Group) Close() error {
	g.mu.Lock()
	was := g.closed
	g.closed = true
	g.mu.Unlock()
	if was {
		return nil
	}
	result := make(chan error, 1) // so that a late end leaks no goroutine
	go func() { result <- g.shutdown() }()
	select {
	case err := <-result:
		return err
	case <-time.After(g.cfg.Timing.Close):
		return fmt.Errorf("raft group: not closed after %v", g.cfg.Timing.Close)
	}
}

func (g *Group) shutdown() error {
	g.proposals.Wait() // Raft answers each: a leader that finds no quorum steps down
	f := g.raft.Shutdown()
	_ = g.streams.Close() // never fails
	err := f.Error()
	g.trans.CloseStreams()
	g.streams.users.Wait() // a late message would still touch the store
	g.raft.DeregisterObserver(g.observer)
	close(g.done)
	g.watching.Wait()
	return errors.Join(err, g.store.Close())
}
