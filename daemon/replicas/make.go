package replicas

import (
	"context"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

const (
	atOnce     = 4  // replicas made concurrently
	batchFiles = 64 // files between two checks of room and map
	keepFree   = 16 // 1/keepFree of the node's room stays free of replicas

	// Pauses before files that could not be copied are retried.
	firstRetry = 5 * time.Second
	lastRetry  = 5 * time.Minute
)

// errNoRoom means that there is no free room for more replicas.
var errNoRoom = fmt.Errorf("no room for more replicas: %w", syscall.ENOSPC)

// Run makes replicas until ctx ends.
func (r *Replicas) Run(ctx context.Context) {
	node.Follow(ctx, r.cfg.Node, firstRetry, lastRetry, func(v cluster.View) bool {
		done := true
		for _, ds := range v.Datasets {
			if ds.Replicas != "" && ds.Phase == cluster.Sealed {
				done = r.follow(ctx, ds, v.Map) && done
			}
		}
		return done
	})
}

// follow makes the replicas of a dataset that m assigns to this node, and reports whether nothing is left to do.
func (r *Replicas) follow(ctx context.Context, ds cluster.Dataset, m cluster.Map) bool {
	log := r.cfg.Node.Log().WithField("dataset", ds.Name)
	s, err := r.prepare(ctx, ds, m)
	if err != nil {
		if ctx.Err() == nil {
			log.WithError(err).Warn("replication of the dataset not started: retrying")
		}
		return false
	}
	if s == nil {
		return false // the manifest is not here yet
	}
	err = r.makeAll(ctx, s)
	full := errors.Is(err, errNoRoom)
	r.mu.Lock()
	s.full = full
	missed, mark, news := s.missed, s.mark(r.cfg.Node.Self()), s.noticed != s.have
	s.noticed = s.have
	r.mu.Unlock()
	switch {
	case ctx.Err() != nil || errors.Is(err, errChanged):
		return false
	case news:
		r.changed(s.id, nil)
	}
	log = log.WithField("files", mark.Files).WithField("bytes", mark.Bytes)
	switch {
	case err != nil && !full:
		log.WithError(err).Warn("replication of the dataset interrupted: retrying")
	case !news:
	case full && ds.Replicas != cluster.ReplicasSpare:
		log.WithField("of_files", mark.OfFiles).Warn("no room for more replicas on this node: copying resumes when space is free")
	case missed > 0:
		log.WithField("missed", missed).Debug("files without a replica: their owners do not have them, or do not answer")
	default:
		log.Info("replicas of the dataset made")
	}
	return err == nil && missed == 0 && (ds.Plan == "" || r.plan(ds) != nil || ds.Replicas != cluster.ReplicasSpare)
}

// plan returns the access plan that orders the replicas of a dataset; nil: none, or it is not here yet.
func (r *Replicas) plan(ds cluster.Dataset) *accessplan.Plan {
	if ds.Replicas != cluster.ReplicasSpare || ds.Plan == "" {
		return nil
	}
	return r.cfg.Plan(ds)
}

// reordered reports whether the replicas of s must be made in another order, because its dataset has another plan or no
// plan any more. The order stays if replicas were given back, because these are at its end.
func (r *Replicas) reordered(s *set, ds cluster.Dataset) bool {
	plan := r.plan(ds)
	if plan == nil && ds.Plan != "" || s.order.of() == plan {
		return false
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	return s.ceiling == math.MaxUint64
}

// prepare returns the set of a dataset under the map m; nil if its manifest is not here.
func (r *Replicas) prepare(ctx context.Context, ds cluster.Dataset, m cluster.Map) (*set, error) {
	r.mu.RLock()
	was := r.sets[ds.ID]
	r.mu.RUnlock()
	if was != nil && was.m.Epoch == m.Epoch && !r.reordered(was, ds) {
		r.mu.Lock()
		was.claim = was.mark(0).Below
		was.made, was.missed = 0, 0 // missing replicas are retried
		clear(was.away)
		r.mu.Unlock()
		return was, r.learnSums(ctx, was)
	}
	table, ok := r.cfg.Manifest(ds)
	if !ok {
		return nil, nil
	}
	var order *preference
	if was != nil && !r.reordered(was, ds) {
		order = was.order
	} else if plan := r.plan(ds); plan != nil {
		order = newPreference(plan, table, len(m.Nodes))
	}
	s, err := newSet(ds, table, m, r.cfg.Node.Self(), order)
	if err != nil {
		return nil, err
	}
	if was == nil {
		r.sweep(s)
	}
	r.mu.Lock()
	if was != nil {
		s.inherit(was)
	}
	r.sets[s.id] = s
	r.mu.Unlock()
	r.on.Store(true)
	return s, r.learnSums(ctx, s)
}

// sweep removes unfinished replicas of an earlier daemon run, and replicas of chunks that are not in s.
func (r *Replicas) sweep(s *set) {
	wanted := make(map[metadata.Ino]bool)
	for i := range s.files {
		if o := s.object(s.files[i].PieceID); o != s.files[i].Ino {
			wanted[o] = true
		}
	}
	n, err := r.cfg.Store.RemoveAll(func(ino metadata.Ino) bool {
		return ino.Sealed() && ino.Dataset() == s.id && ino.Part() == metadata.DirPart && !wanted[ino]
	})
	log := r.cfg.Node.Log().WithField("dataset", s.id)
	if err != nil {
		log.WithError(err).Warn("unfinished replicas not removed: they take space until the job ends")
	}
	if n > 0 {
		log.WithField("objects", n).Debug("unfinished replicas of an earlier run removed")
	}
}

// learnSums asks the owners for the checksums of the files that they staged. If an owner is down, they come from the
// manifest, or are computed when a file is copied.
func (r *Replicas) learnSums(ctx context.Context, s *set) error {
	if s.unasked == nil { // only Run sets it
		s.unasked = make(owners)
		for i := range s.files {
			s.unasked[s.files[i].owner] = true
		}
	}
	for id := range s.unasked {
		if n, _ := s.m.Node(id); n.State != cluster.Down {
			err := r.cfg.Sums(ctx, s.id, id, func(p fill.PieceID, sum [16]byte) {
				r.mu.Lock()
				defer r.mu.Unlock()
				if f := s.find(p); f != nil && f.owner == id && sum != [16]byte{} {
					f.sum = sum
				}
			})
			if r.isAway(ctx, s, id, err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("checksums of node %d: %w", id, err)
			}
		}
		delete(s.unasked, id)
	}
	return nil
}

var errChanged = errors.New("the map or the access plan has changed")

// makeAll makes the replicas of s in order, until there is no room, or the map or the order changes.
func (r *Replicas) makeAll(ctx context.Context, s *set) error {
	for traded := false; ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		v := r.cfg.Node.View()
		if ds, _ := v.Dataset(s.id); v.Map.Epoch != s.m.Epoch || r.reordered(s, ds) {
			return errChanged
		}
		batch, room := r.batch(s)
		switch {
		case len(batch) == 0 && !room:
			if traded || !r.trade(s) { // a kernel view may hold the room of a removed replica until it is rebuilt
				return errNoRoom
			}
			traded = true
			continue
		case len(batch) == 0:
			return nil
		}
		traded = false
		if err := r.makeBatch(ctx, s, batch); err != nil {
			return err
		}
	}
}

// batch returns the next files to replicate, and whether there is room for more.
func (r *Replicas) batch(s *set) (batch []file, room bool) {
	sp, _ := r.cfg.Store.Space(context.Background()) // local
	free, err := r.cfg.Store.FreeNow()
	free -= sp.Capacity / keepFree
	r.mu.Lock()
	defer r.mu.Unlock()
	for ; s.made < len(s.files) && s.files[s.made].pos < s.ceiling; s.made++ {
		f := &s.files[s.made]
		if f.state != absent {
			continue
		}
		if len(s.away) > 0 && s.away[s.m.Holder(f.Ino, f.owner)] {
			s.missed++
			continue
		}
		if len(batch) == batchFiles {
			return batch, true
		}
		if free -= f.size; free < 0 || err != nil {
			return batch, false
		}
		batch = append(batch, *f)
	}
	return batch, true
}

// makeBatch makes replicas of files. It returns only errors that stop all other replicas, too.
func (r *Replicas) makeBatch(ctx context.Context, s *set, batch []file) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, files := range lanes(batch, max(atOnce/max(len(s.m.Nodes)-1, 1), 1)) {
		g.Go(func() error {
			r.pace.makers.Add(1)
			defer r.pace.makers.Add(-1)
			for i, f := range files {
				from := s.m.Holder(f.Ino, f.owner)
				err := r.makeOne(ctx, s, f)
				away := r.isAway(ctx, s, from, err)
				if away {
					i-- // this file is missed, too
				} else if err != nil {
					return err
				}
				if away || f.size >= measured && r.pace.slow(from) { // smaller transfers do not show it
					r.mu.Lock()
					s.missed += len(files) - i - 1 // they are retried later
					r.mu.Unlock()
					break
				}
			}
			return nil
		})
	}
	err := g.Wait()
	if err != nil {
		r.mu.Lock()
		s.made = s.index(batch[0].pos)
		r.mu.Unlock()
	}
	return err
}

// lanes divides files among makers, each makers per owner, so that a slow owner does not delay the files of others.
func lanes(batch []file, each int) (all [][]file) {
	type lane struct {
		owner metadata.NodeID
		n     int // index among that owner's lanes
	}
	at, n := make(map[lane]int), make(map[metadata.NodeID]int)
	for _, f := range batch {
		l := lane{f.owner, n[f.owner] % each}
		n[f.owner]++
		i, ok := at[l]
		if !ok {
			i, at[l] = len(all), len(all)
			all = append(all, nil)
		}
		all[i] = append(all[i], f)
	}
	return all
}

// makeOne makes the replica of a file. It returns the errors of makeBatch, and an error if the owner does not answer.
func (r *Replicas) makeOne(ctx context.Context, s *set, f file) error {
	to := present
	sum, err := r.copyFile(ctx, s, f)
	if errors.Is(err, errKept) {
		to, err = kept, nil
	}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		return errNoRoom
	case ctx.Err() != nil:
		return ctx.Err()
	case node.Unreachable(err):
		return err
	case err != nil:
		r.cfg.Node.Log().WithError(err).WithField("inode", f.Ino.String()).Debug("replica not made")
		r.mu.Lock()
		s.missed++
		r.mu.Unlock()
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := s.find(f.PieceID); x != nil && x.state == absent {
		x.sum = sum
		r.bytes.Add(s.put(x, to))
	}
	return nil
}

// copyFile copies a file from the node that has it to this one, and returns its checksum.
func (r *Replicas) copyFile(ctx context.Context, s *set, f file) (sum [16]byte, err error) {
	temp := metadata.SealedIno(s.id, metadata.DirPart, unfinished|r.serial.Add(1))
	from := s.m.Holder(f.Ino, f.owner)
	want := f.sum
	if want == [16]byte{} {
		if want, err = s.sum(f.PieceID); err != nil {
			return sum, err
		}
	}
	if sum, ok, err := r.left(ctx, s, f, want); ok || err != nil {
		return sum, err
	}
	sum, err = r.pull(ctx, s, from, f.PieceID, want, &r.pace, func(p []byte, off int64) error { return r.cfg.Write(ctx, temp, p, off) })
	if err == nil {
		err = r.cfg.Store.Rename(ctx, temp, s.object(f.PieceID))
	}
	if err != nil {
		_ = r.cfg.Store.Remove(context.WithoutCancel(ctx), temp) // a leftover is removed at the next daemon start
	}
	return sum, err
}

// errKept means that this node stores the file as its own.
var errKept = errors.New("the file is here already")

// left adopts a replica of an earlier daemon run if it matches its checksum, and removes it otherwise. It fails for a
// file that falls to this node, or that this node is storing as its own because the owner was away until now.
func (r *Replicas) left(ctx context.Context, s *set, f file, want [16]byte) (sum [16]byte, ok bool, err error) {
	coming := r.cfg.Coming(f.PieceID) // must be read before Stored
	if r.cfg.Stored(f.PieceID) {
		return sum, false, errKept
	}
	if m := r.cfg.Node.View().Map; coming || m.Holder(f.Ino, f.owner) == r.cfg.Node.Self() {
		return sum, false, fmt.Errorf("inode %v falls to this node: %w", f.Ino, syscall.EEXIST)
	}
	object := s.object(f.PieceID)
	o, err := r.cfg.Store.Open(object)
	if err != nil {
		return sum, false, nil
	}
	_ = o.Close() // opened only to check that it exists
	if want != [16]byte{} && r.cfg.Compare(ctx, fill.PieceSum{Ino: object, Len: f.size, Whole: true, Sum: want}) == nil {
		return want, true, nil
	}
	return sum, false, r.cfg.Store.Remove(ctx, object)
}

// pull reads a piece that a node has stored, calls put with its bytes, and returns its checksum, which must be want
// unless want is zero. pace is nil if a reader waits. EAGAIN means that the node does not have the piece.
func (r *Replicas) pull(ctx context.Context, s *set, from metadata.NodeID, p fill.PieceID, want [16]byte, pace *pacer, put func(p []byte, off int64) error) (sum [16]byte, err error) {
	_, size, at, err := s.owned(p)
	if err != nil {
		return sum, err
	}
	peer, ok := r.cfg.Of(from).(datapath.PresentReader)
	if !ok {
		return sum, fmt.Errorf("node %d cannot read without a fetch: %w", from, syscall.ENOTSUP)
	}
	check, own := stagein.NewChecker(want, size), stagein.NewSummer()
	buf := make([]byte, min(size, wire.MaxData))
	for off := int64(0); off < size; {
		b := buf[:min(size-off, int64(len(buf)))]
		if err := r.cfg.Rate.Take(ctx, int64(len(b))); err != nil {
			return sum, err
		}
		begun := time.Now()
		n, err := peer.ReadIfPresent(ctx, p.Ino, b, at(from)+off)
		took := time.Since(begun)
		if err == nil && n < len(b) {
			err = fmt.Errorf("%d of %d bytes: %w", n, len(b), syscall.EAGAIN)
		}
		if err != nil {
			return sum, fmt.Errorf("inode %v from node %d: %w", p.Ino, from, err)
		}
		_, _ = check.Write(b) // never fails
		_, _ = own.Write(b)
		if err := put(b, off); err != nil {
			return sum, err
		}
		off += int64(n)
		pace.observe(from, n, took)
		if err := pace.yield(ctx, took); err != nil {
			return sum, err
		}
	}
	if err := check.Check(); err != nil {
		return sum, fmt.Errorf("inode %v from node %d: %w", p.Ino, from, err)
	}
	if want != [16]byte{} {
		return want, nil
	}
	return own.Sum(), nil
}
