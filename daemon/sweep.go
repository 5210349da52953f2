package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Sweep is what this node has removed since its daemon began, because nobody
// can reach it: what was left over when a daemon was killed, here or elsewhere.
type Sweep struct {
	Runs    int   `json:"runs"`    // how often it has looked through all that it has
	Objects int64 `json:"objects"` // of files that are gone
	Inodes  int64 `json:"inodes"`  // that nothing names
	Files   int64 `json:"files"`   // that were half written: pieces of manifests and the like
	// Waiting is the objects whose home could not be asked at the last run. They
	// stay, and are looked at again.
	Waiting int64 `json:"waiting"`
	// Undone says that the last run could not look for inodes that nothing names,
	// for which all nodes have to answer; another will.
	Undone bool `json:"undone,omitempty"`
}

// sweeping is the state of the sweep.
type sweeping struct {
	kick chan struct{} // another daemon has started again; one is enough

	mu   sync.Mutex
	runs map[metadata.NodeID]metadata.Run // guarded by mu; of the nodes' clients, as last heard
	sum  Sweep                            // guarded by mu
}

func (s *sweeping) init() {
	s.kick, s.runs = make(chan struct{}, 1), make(map[metadata.NodeID]metadata.Run)
}

// heard takes note of a node's run, which asks what is open here: so it is not its
// first. What an earlier one has sent to this node may have been done after its
// file was removed, so there is something to look for.
func (s *sweeping) heard(by metadata.Holder) {
	s.mu.Lock()
	was := s.runs[by.Node]
	s.runs[by.Node] = max(was, by.Run)
	s.mu.Unlock()
	if was >= by.Run {
		return
	}
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

func (s *sweeping) read() Sweep {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sum
}

// add adds what was found, of which waiting is how it is now.
func (s *sweeping) add(found Sweep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sum.Runs += found.Runs
	s.sum.Objects += found.Objects
	s.sum.Inodes += found.Inodes
	s.sum.Files += found.Files
	s.sum.Waiting, s.sum.Undone = found.Waiting, found.Undone
}

// sweepLoop looks through what this node has, in the background: once when it
// starts on an old store, and after another daemon has started again. While
// there is something that it cannot decide it looks again later.
func (d *Daemon) sweepLoop(ctx context.Context) {
	first := !d.meta.Fresh()
	names := first // are to be compared, too
	for seen, wait := 0, time.Duration(0); first || d.leftovers(ctx, seen, wait); first = false {
		if node.Pause(ctx, d.sweepPause()) != nil || d.Until(ctx, d.serves) != nil {
			return
		}
		now := comebacks(d.View().Map)
		names = names || now != seen
		found, err := d.sweepOnce(ctx, names)
		if ctx.Err() != nil {
			return
		}
		seen, names = now, names && (err != nil || found.Undone)
		d.sweep.add(found)
		d.tellSwept(found, err, first)
		if err == nil && found.Waiting == 0 && !found.Undone {
			wait = 0
		} else {
			wait = min(max(2*wait, 6*d.cfg.Timing.Sweep), maxSweepWait)
		}
	}
}

// maxSweepWait is the longest time between two tries at what was left undone.
const maxSweepWait = 10 * time.Minute

// leftovers waits until there may be something to look for: a daemon has started
// again, a node that was given up is back, beside those that were seen, or wait
// is over, if it is not 0. It is false when ctx ends.
func (d *Daemon) leftovers(ctx context.Context, seen int, wait time.Duration) bool {
	var over <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		over = t.C
	}
	for {
		v, changed := d.Watch()
		if comebacks(v.Map) != seen {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-d.sweep.kick:
			return true
		case <-over:
			return true
		case <-changed:
		}
	}
}

// comebacks is how often nodes that were given up have come back.
func comebacks(m cluster.Map) int {
	n := 0
	for _, x := range m.Nodes {
		n += max(len(x.Terms)-1, 0)
	}
	return n
}

// serves reports whether this node takes part in what the job does.
func (d *Daemon) serves(v cluster.View) bool {
	n, ok := v.Map.Node(d.job.Self)
	return v.Version > 0 && ok && node.Serving(n)
}

// sweepPause is how long a sweep waits: what was about to happen has happened
// then, and the nodes of a large job do not all begin at once.
func (d *Daemon) sweepPause() time.Duration {
	return d.cfg.Timing.Sweep + time.Duration(rand.Int64N(int64(len(d.job.Hosts))*int64(50*time.Millisecond)))
}

func (d *Daemon) tellSwept(s Sweep, err error, first bool) {
	log := d.log.WithFields(map[string]any{"objects": s.Objects, "inodes": s.Inodes, "files": s.Files, "waiting": s.Waiting})
	switch {
	case err != nil:
		log.WithError(err).Warn("what nobody needs could not all be removed, and is tried again")
	case first || s.Objects+s.Inodes > 0:
		log.Info("what nobody needs is removed")
	}
}

// sweepOnce is one run. Inodes without a name are left only where nodes were given
// up, and found only by asking all for all their names.
func (d *Daemon) sweepOnce(ctx context.Context, names bool) (Sweep, error) {
	s := sweeper{d: d, ask: make(map[metadata.NodeID][]metadata.Ino), found: Sweep{Runs: 1}}
	err := s.objects(ctx)
	if names {
		err = errors.Join(err, s.nameless(ctx))
	}
	return s.found, err
}

// sweeper is one run.
type sweeper struct {
	d     *Daemon
	ask   map[metadata.NodeID][]metadata.Ino // what their homes are to be asked about
	found Sweep
}

// askAtOnce is about how many inodes a home is asked at a time.
const askAtOnce = 4096

// objects removes the objects of live files that are not there any more. A file
// is there before its first object, and its number is never used again: when an
// object was seen, and its home says that it has no such file, nobody will ever
// read it. Whoever cannot be asked leaves the matter open. It works no more than
// half of the time.
func (s *sweeper) objects(ctx context.Context) error {
	var errs []error
	for part := range chunkstore.Parts {
		begun := time.Now()
		inos, err := s.d.liveObjects(uint8(part))
		errs = append(errs, err)
		for _, ino := range inos {
			home := ino.Home()
			s.ask[home] = append(s.ask[home], ino)
			if len(s.ask[home]) >= askAtOnce {
				errs = append(errs, s.decide(ctx, home))
			}
		}
		if err := node.Pause(ctx, time.Since(begun)); err != nil {
			return err
		}
	}
	for home := range s.ask {
		errs = append(errs, s.decide(ctx, home))
	}
	return errors.Join(errs...)
}

// decide asks home about the objects that were collected for it, and removes
// those of files that are gone.
func (s *sweeper) decide(ctx context.Context, home metadata.NodeID) error {
	inos := s.ask[home]
	delete(s.ask, home)
	gone, err := s.d.gone(ctx, home, inos)
	if err != nil {
		s.found.Waiting += int64(len(inos))
		s.d.log.WithError(err).WithField("home", home).Debug("objects stay whose home does not answer")
		return nil
	}
	asked := make(map[metadata.Ino]bool, len(inos))
	for _, ino := range inos {
		asked[ino] = true
	}
	var errs []error
	for _, ino := range gone {
		if !asked[ino] {
			return fmt.Errorf("node %d was not asked about inode %v: %w", home, ino, syscall.EPROTO)
		}
		err := s.d.data.Remove(ctx, ino)
		errs = append(errs, err)
		if err == nil {
			s.found.Objects++
		}
	}
	return errors.Join(errs...)
}

// goneReq asks a home which of these inodes it had once and has no more.
type goneReq struct {
	Inos []metadata.Ino `json:"inos"`
}

type goneReply struct {
	Gone []metadata.Ino `json:"gone"`
}

func (d *Daemon) gone(ctx context.Context, home metadata.NodeID, inos []metadata.Ino) ([]metadata.Ino, error) {
	if n, ok := d.View().Map.Node(home); !ok || !node.Serving(n) {
		return nil, fmt.Errorf("node %d: %w", home, syscall.EHOSTDOWN)
	}
	var r goneReply
	err := d.askNode(ctx, home, wire.OpMissing, goneReq{inos}, &r)
	return r.Gone, err
}

func (d *Daemon) onGone(_ context.Context, _ metadata.NodeID, q *goneReq) (goneReply, error) {
	gone, err := d.meta.Missing(q.Inos)
	return goneReply{gone}, err
}

// removeHalves removes what an earlier life of this daemon was writing when it
// was killed. It is called before anybody writes.
func (d *Daemon) removeHalves() {
	halves, _ := filepath.Glob(d.dir("stage", "*", "*.new")) // the pattern is good
	for _, path := range halves {
		if err := os.Remove(path); err != nil {
			d.log.WithError(err).Warn("a file that was half written stays")
			continue
		}
		d.sweep.add(Sweep{Files: 1})
	}
}
