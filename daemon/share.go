package daemon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/tasks"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// share is this node's part of a stage-in.
type share struct {
	d       *Daemon
	plan    *stagein.Plan
	part    int
	from    metadata.NodeID // the coordinator, when it began
	running atomic.Pointer[stagein.Share]
	told    atomic.Pointer[stagein.Seam] // to whoever leads
	read    atomic.Int64                 // bytes of the source, by all tries of the part on this node
	before  atomic.Int64                 // of them, by tries before this one
	over    atomic.Bool
}

// progress is how far the share is. What of the source was read is that of all tries on
// this node, so that who leads, and knows nothing of those before, cannot forget it.
func (s *share) progress() (p stagein.Progress) {
	if r := s.running.Load(); r != nil {
		p = r.Progress()
	}
	p.SourceBytes += s.before.Load()
	return p
}

// report is what a poll says of the share.
func (s *share) report(full bool) any {
	r := partReport{Progress: s.progress()}
	if s.over.Load() {
		r.Pieces, r.Kept = s.pieces()
	}
	if full {
		r.Seam = s.told.Load()
	}
	return r
}

// pieces is what the share has read of members that others have read parts of, and
// which tries before it has gone on from.
func (s *share) pieces() ([]stagein.Piece, []stagein.Try) {
	if r := s.running.Load(); r != nil {
		return r.Pieces(), r.Kept()
	}
	return nil, nil
}

// stageDir is where this node keeps what belongs to the staging of ds.
func (d *Daemon) stageDir(ds metadata.DatasetID) string {
	return d.dir("stage", strconv.Itoa(int(ds)))
}

func partFile(part int) string { return "part-" + strconv.Itoa(part) }
func (d *Daemon) readFile(ds metadata.DatasetID, part int) string {
	return filepath.Join(d.stageDir(ds), "read-"+strconv.Itoa(part))
}

// pointsFile has the restart points of a part's compressed tars: a line of JSON, restartPoints, for each.
func pointsFile(part int) string { return "points-" + strconv.Itoa(part) }

func recordsFile(part int) string { return "records-" + strconv.Itoa(part) }

const manifestFile = "manifest"

func (s *share) run(ctx context.Context) error {
	defer s.over.Store(true)
	d := s.d
	// One that has just started again may know of no node that it is up: it would take
	// them all for lost, and what is put on those goes nowhere.
	if err := d.Until(ctx, func(v cluster.View) bool { return v.Map.Epoch >= s.plan.Map.Epoch }); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	if err := os.MkdirAll(d.stageDir(s.plan.Dataset), 0o700); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	part := s.plan.Parts[s.part]
	if s.plan.Itemized() {
		if err := s.fetchItems(ctx, &part); err != nil {
			return err
		}
	}
	records := filepath.Join(d.stageDir(s.plan.Dataset), recordsFile(s.part))
	f, err := os.Create(tryFile(records, part.Try))
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	skips, err := os.Create(filepath.Join(d.stageDir(s.plan.Dataset), skipsFile(s.part)))
	if err != nil {
		return errors.Join(fmt.Errorf("stage-in: %w", err), f.Close())
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = s.stage(ctx, part, w, skips)
	if err == nil {
		err = w.Flush()
	}
	for _, f := range []*os.File{f, skips} {
		if e := f.Close(); err == nil {
			err = e
		}
	}
	if err == nil {
		err = os.Rename(tryFile(records, part.Try), records)
	}
	return err
}

// restartPoints is those of one compressed tar, by its number among the sources.
type restartPoints struct {
	Source uint32 `json:"source"`
	Points []byte `json:"points"` // as stagein.ShareConfig.RestartPoints gets them
}

// readRestartPoints reads a pointsFile. A line that a killed daemon has left unfinished is passed over: its archive
// is read again.
func readRestartPoints(path string) (all []restartPoints, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		var p restartPoints
		if json.Unmarshal(line, &p) == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// keepRestartPoints appends to a pointsFile.
func keepRestartPoints(w io.Writer) func(source uint32, points []byte) error {
	var mu sync.Mutex
	return func(source uint32, points []byte) error {
		b, err := json.Marshal(restartPoints{source, points})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = w.Write(slices.Concat([]byte("\n"), b, []byte("\n")))
		return err
	}
}

// tryFile is where a try writes its records until it has all of them.
func tryFile(records string, try uint16) string { return records + ".try-" + strconv.Itoa(int(try)) }

func (s *share) stage(ctx context.Context, part stagein.Part, w, skips io.Writer) error {
	d := s.d
	path := d.readFile(s.plan.Dataset, s.part)
	s.read.Store(readCount(path))
	s.before.Store(s.read.Load())
	c, err := newCounter(path, &s.read)
	if err != nil {
		return err
	}
	defer c.close()
	was := s.lastTry(part)
	defer was.close()
	if s.plan.WholeArchives() && part.Try > 0 {
		d.dropTries(ctx, s.plan, s.part, was.kept())
	}
	points, err := os.OpenFile(d.pointsPath(s.plan.Dataset, s.part), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	defer points.Close() // what counts was written
	sh, err := stagein.NewShare(stagein.ShareConfig{
		Marked: s.mark(part), Resume: was.mark, Before: was.records, RestartPoints: keepRestartPoints(points),
		Plan: s.plan, Part: part, FS: c.of(d.cfg.Source), Map: s.plan.Map, Target: target{d, s.plan.Map.Epoch},
		SeamIn: s.seamIn, SeamOut: s.seamOut, Records: w, Skipped: skips, Scratch: d.scratch(s.plan.Dataset), Log: d.log.WithField("dataset", s.plan.Name),
	})
	if err != nil {
		return err
	}
	s.running.Store(sh)
	return sh.Run(ctx)
}

// dropTries has the nodes remove what earlier tries of a part have stored, but for what is kept of them: the next try
// needs the room.
func (d *Daemon) dropTries(ctx context.Context, p *stagein.Plan, part int, kept []stagein.Try) {
	q := abortReq{Dataset: p.Dataset, Void: p.VoidOf(part, kept)}
	var g errgroup.Group
	for _, id := range node.Participants(d.View().Map) {
		g.Go(func() error {
			return d.Insist(ctx, id, 2*d.cfg.Timing.Down, tasks.MayLag, func() error { return d.Call(ctx, id, wire.OpStageAbort, q, nil) })
		})
	}
	if err := g.Wait(); err != nil {
		d.log.WithError(err).WithField("dataset", p.Name).Warn("data stored by an earlier attempt was not removed everywhere; the stage-in may run out of room")
	}
}

func (s *share) fetchItems(ctx context.Context, part *stagein.Part) error {
	name := filepath.Join(s.d.stageDir(s.plan.Dataset), partFile(s.part))
	if err := s.toLeader(ctx, func(leader metadata.NodeID) error {
		if leader == s.d.job.Self {
			return nil
		}
		return s.d.fetch(ctx, leader, blobReq{Dataset: s.plan.Dataset, Name: partFile(s.part)}, name)
	}); err != nil {
		return fmt.Errorf("stage-in: list of files: %w", err)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	var got stagein.Part
	if err := node.DecodeJSON(b, &got); err != nil {
		return fmt.Errorf("stage-in: list of files: %w", err)
	}
	if got.Index != part.Index {
		return fmt.Errorf("stage-in: list of files of part %d, want %d: %w", got.Index, part.Index, syscall.EPROTO)
	}
	got.Node, got.Try = part.Node, part.Try
	*part = got
	return nil
}

func (s *share) seamIn(ctx context.Context) (stagein.Seam, error) {
	c, err := s.d.stage.seam(seamKey{s.plan.Dataset, s.part})
	if err != nil {
		return stagein.Seam{}, err
	}
	select {
	case seam := <-c:
		return seam, nil
	case <-ctx.Done():
		return stagein.Seam{}, ctx.Err()
	}
}

// seamOut tells where this region's headers end: to the node that leads, which
// knows who reads the next one, also when that has to be begun again. Who leads after
// that node asks for it.
func (s *share) seamOut(ctx context.Context, seam stagein.Seam) error {
	s.told.Store(&seam)
	q := seamReq{Dataset: s.plan.Dataset, Part: s.part + 1, Seam: seam}
	return s.toLeader(ctx, func(leader metadata.NodeID) error { return s.d.Call(ctx, leader, wire.OpStageBoundary, q, nil) })
}

// toLeader asks the node that leads the stage-in for something, which may be another
// one than that which has begun this share. While none does it waits: when the stage-in
// fails, ctx ends.
func (s *share) toLeader(ctx context.Context, ask func(leader metadata.NodeID) error) error {
	for {
		leader := s.from
		v, changed := s.d.Watch()
		if ds, known := v.Dataset(s.plan.Dataset); known {
			leader = ds.Coordinator
		}
		err := ask(leader)
		if err == nil || !node.Unreachable(err) && !errors.Is(err, syscall.ESTALE) {
			return err
		}
		select {
		case <-changed:
		case <-time.After(pollEvery):
		case <-ctx.Done():
			return err
		}
	}
}

// target is where staged bytes go: the owner's chunk store.
type target struct {
	d     *Daemon
	since metadata.Epoch // in which this began; 0 is any
}

func (t target) store(node metadata.NodeID) datapath.Store {
	if node == t.d.job.Self {
		return t.d.data
	}
	return t.d.cfg.Data(t.d.peers.To(node))
}

// Put writes p to the object of ino on node. A connection that breaks is no
// reason to give a stage-in up, as long as the map says that the node is there:
// what was written twice is the same. A node that was lost since this began gets
// nothing more: it takes nothing over (stagein.Origins), and who stands in for it
// fetches what it was to have.
func (t target) Put(ctx context.Context, node metadata.NodeID, ino metadata.Ino, p []byte, off int64) error {
	if node == t.d.job.Self {
		return t.d.write(ctx, ino, p, off)
	}
	return t.unlessLost(ctx, node, func() error { return t.store(node).WriteAt(ctx, ino, p, off) })
}

// PutAll is Put for parcels.
func (t target) PutAll(ctx context.Context, node metadata.NodeID, ps []datapath.PiecePut) (errs []error, err error) {
	if node == t.d.job.Self {
		return stagein.PutEach(ctx, ps, t.d.write), nil
	}
	w, ok := t.store(node).(datapath.PiecePutter)
	if !ok {
		return nil, fmt.Errorf("parcels to node %d: %w", node, syscall.ENOTSUP)
	}
	errs = make([]error, len(ps)) // of a lost node
	err = t.unlessLost(ctx, node, func() error {
		got, err := w.PutPieces(ctx, ps)
		copy(errs, got)
		return err
	})
	return errs, err
}

func (t target) unlessLost(ctx context.Context, id metadata.NodeID, do func() error) error {
	if t.lost(id) {
		return ctx.Err()
	}
	err := t.d.Insist(ctx, id, 2*t.d.cfg.Timing.Down, node.Unreachable, do)
	if err != nil && node.Unreachable(err) && t.lost(id) {
		return ctx.Err()
	}
	return err
}

func (t target) lost(node metadata.NodeID) bool {
	return t.since > 0 && !t.d.View().Map.Throughout(node, t.since)
}

// Remove takes back what was put.
func (t target) Remove(ctx context.Context, node metadata.NodeID, ino metadata.Ino) error {
	return t.unlessLost(ctx, node, func() error { return t.store(node).Remove(ctx, ino) })
}
