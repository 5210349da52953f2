package home

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Sweep counts the leftovers of killed daemons, here or on other nodes, that this node has removed since its daemon
// started.
type Sweep struct {
	Runs    int   `json:"runs"`    // how often all objects were examined
	Objects int64 `json:"objects"` // objects of removed files
	Inodes  int64 `json:"inodes"`  // inodes without a name on any node
	Files   int64 `json:"files"`   // half-written files: manifests, records of a stage-in
	// Waiting counts the objects whose home did not answer in the last run. They stay until the next run.
	Waiting int64 `json:"waiting"`
	// Undone says that the last run could not look for inodes without a name, because all nodes must answer for that. A
	// later run will.
	Undone bool `json:"undone,omitempty"`
}

// Swept returns the counts so far.
func (s *Server) Swept() Sweep {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.swept
}

func (s *Server) addSwept(found Sweep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.swept.Runs += found.Runs
	s.swept.Objects += found.Objects
	s.swept.Inodes += found.Inodes
	s.swept.Waiting, s.swept.Undone = found.Waiting, found.Undone
}

// heardRun records the run of a node's client when its home asks for the files that this node has open, so it is not
// the node's first run. Writes of an earlier run may have reached this node after their file was removed, so a new run
// triggers a sweep.
func (s *Server) heardRun(by metadata.Holder) {
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

// maxSweepWait is the longest pause before an incomplete sweep is repeated.
const maxSweepWait = 10 * time.Minute

// sweepLoop sweeps once if this daemon has started on an old store, and whenever another daemon has restarted. While a
// sweep is incomplete, it retries with growing pauses.
func (s *Server) sweepLoop(ctx context.Context) {
	first := !s.Fresh()
	names := first // also look for inodes without a name
	again := retry.New(6*s.cfg.SweepDelay, maxSweepWait, 0)
	for seen, wait := 0, time.Duration(0); first || s.sweepDue(ctx, seen, wait); first = false {
		if node.Pause(ctx, s.sweepPause()) != nil || s.node.Until(ctx, s.serves) != nil {
			return
		}
		now := rejoins(s.node.View().Map)
		names = names || now != seen
		found, err := s.sweepOnce(ctx, names)
		if ctx.Err() != nil {
			return
		}
		seen, names = now, names && (err != nil || found.Undone)
		s.addSwept(found)
		s.logSweep(found, err, first)
		if err == nil && found.Waiting == 0 && !found.Undone {
			wait = 0
			again.Reset()
		} else {
			wait = again.Next()
		}
	}
}

// sweepDue waits until there may be leftovers: a daemon has restarted, the number of rejoins differs from seen, or wait
// has passed, if not 0. It returns false when ctx ends.
func (s *Server) sweepDue(ctx context.Context, seen int, wait time.Duration) bool {
	var over <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		over = t.C
	}
	for {
		v, changed := s.node.Watch()
		if rejoins(v.Map) != seen {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.kick:
			return true
		case <-over:
			return true
		case <-changed:
		}
	}
}

// rejoins counts how often given-up nodes have returned and copies were restored.
func rejoins(m cluster.Map) int {
	n := len(m.Restored)
	for _, x := range m.Nodes {
		n += max(len(x.Terms)-1, 0)
	}
	return n
}

// serves reports whether this node, or the home that it stands in for, serves in v.
func (s *Server) serves(v cluster.View) bool {
	if s.cfg.StandIn {
		return v.Version > 0 && v.Map.HomeServes(s.node.Self())
	}
	n, ok := v.Map.Node(s.node.Self())
	return v.Version > 0 && ok && node.Serving(n)
}

// sweepPause returns the delay before a sweep, in which requests in flight arrive. Its random part spreads the nodes of
// a large job.
func (s *Server) sweepPause() time.Duration {
	nodes := int64(len(s.node.View().Map.Nodes))
	return s.cfg.SweepDelay + time.Duration(rand.Int64N(nodes*int64(50*time.Millisecond)))
}

func (s *Server) logSweep(found Sweep, err error, first bool) {
	log := s.log.WithFields(map[string]any{"objects": found.Objects, "inodes": found.Inodes, "waiting": found.Waiting})
	switch {
	case err != nil:
		log.WithError(err).Warn("sweep of leftovers is incomplete and will be repeated")
	case first || found.Objects+found.Inodes > 0:
		log.Info("leftovers of earlier daemons swept")
	}
}

// sweepOnce runs one sweep. It looks for inodes without a name only if names is set: they exist only after nodes were
// given up, and finding them needs all names of all nodes.
func (s *Server) sweepOnce(ctx context.Context, names bool) (Sweep, error) {
	w := sweeper{s: s, batch: make(map[metadata.NodeID][]metadata.Ino), found: Sweep{Runs: 1}}
	var err error
	if !s.cfg.StandIn { // else this node's own home examines them
		err = w.objects(ctx)
	}
	if names && s.cfg.Serves() == nil { // else another node has the records
		err = errors.Join(err, w.orphans(ctx))
	}
	return w.found, err
}

// sweeper is one run of the sweep.
type sweeper struct {
	s     *Server
	batch map[metadata.NodeID][]metadata.Ino // objects whose homes are to be asked
	found Sweep
}

// sweepBatch is about how many inodes one question to a home covers.
const sweepBatch = 4096

// objects removes the objects of live files that their homes no longer know. An object whose home does not answer
// stays. It works for at most half of the time.
func (w *sweeper) objects(ctx context.Context) error {
	var errs []error
	for part := range chunkstore.Parts {
		begun := time.Now()
		inos, err := w.s.liveObjects(uint8(part))
		errs = append(errs, err)
		for _, ino := range inos {
			home := ino.Home()
			w.batch[home] = append(w.batch[home], ino)
			if len(w.batch[home]) >= sweepBatch {
				errs = append(errs, w.removeGone(ctx, home))
			}
		}
		if err := node.Pause(ctx, time.Since(begun)); err != nil {
			return err
		}
	}
	for home := range w.batch {
		errs = append(errs, w.removeGone(ctx, home))
	}
	return errors.Join(errs...)
}

// removeGone asks home about the batch collected for it, and deletes the objects of removed files.
func (w *sweeper) removeGone(ctx context.Context, home metadata.NodeID) error {
	inos := w.batch[home]
	delete(w.batch, home)
	asked := make(map[metadata.Ino][]metadata.Ino, len(inos)) // the objects of each file
	for _, ino := range inos {
		asked[ino.File()] = append(asked[ino.File()], ino)
	}
	files := slices.Collect(maps.Keys(asked))
	gone, err := w.s.gone(ctx, home, files)
	if err != nil {
		w.found.Waiting += int64(len(inos))
		w.s.log.WithError(err).WithField("home", home).Debug("sweep keeps objects whose home does not answer")
		return nil
	}
	var errs []error
	for _, ino := range gone {
		objects, ok := asked[ino]
		if !ok {
			return fmt.Errorf("node %d was not asked about inode %v: %w", home, ino, syscall.EPROTO)
		}
		for _, object := range objects {
			err := w.s.cfg.Data.Remove(ctx, object)
			errs = append(errs, err)
			if err == nil {
				w.found.Objects++
			}
		}
	}
	return errors.Join(errs...)
}

// goneReq asks a home which of these inodes it once had and no longer has.
type goneReq struct {
	Inos []metadata.Ino `json:"inos"`
}

type goneReply struct {
	Gone []metadata.Ino `json:"gone"`
}

func (s *Server) gone(ctx context.Context, home metadata.NodeID, inos []metadata.Ino) ([]metadata.Ino, error) {
	if !s.node.View().Map.HomeServes(home) {
		return nil, fmt.Errorf("node %d: %w", home, syscall.EHOSTDOWN)
	}
	var r goneReply
	err := s.ask(ctx, home, wire.OpMissing, goneReq{inos}, &r)
	return r.Gone, err
}

func (s *Server) onGone(_ context.Context, _ metadata.NodeID, q *goneReq) (goneReply, error) {
	gone, err := s.Missing(q.Inos)
	return goneReply{gone}, err
}
