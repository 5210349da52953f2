package replicas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// ErrNotHere means that this node does not have the replica.
var ErrNotHere = fmt.Errorf("no replica is here: %w", syscall.EAGAIN)

// Verify compares a replica with its checksum, once after it was made. It removes a replica that does not match, and
// returns ErrNotHere.
func (r *Replicas) Verify(ctx context.Context, p fill.PieceID) error {
	if _, verified := r.look(p); verified {
		return nil
	}
	bad := r.Compare(ctx, p)
	if bad == nil || ctx.Err() != nil || errors.Is(bad, ErrNotHere) {
		return bad
	}
	r.cfg.Node.Log().WithError(bad).WithField("inode", p.Ino.String()).Warn("replica does not match its checksum: removed; readers use another copy")
	r.removing.Lock()
	defer r.removing.Unlock()
	if s := r.pick(p); s != nil {
		r.discard(s, gone, p)
	}
	return fmt.Errorf("%v: %w", bad, ErrNotHere)
}

// Compare compares a replica with its checksum, even if it was verified before.
func (r *Replicas) Compare(ctx context.Context, p fill.PieceID) error {
	f, _ := r.look(p)
	if f.state != present {
		return ErrNotHere
	}
	err := r.cfg.Compare(ctx, fill.PieceSum{Ino: r.set(p.Ino).object(p), Len: f.size, Whole: true, Sum: f.sum})
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.sets[p.Ino.Dataset()].find(p); f != nil {
		f.verified = err == nil
	}
	return err
}

// look returns a file of a set, and whether it is a verified replica.
func (r *Replicas) look(p fill.PieceID) (f file, verified bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if x := r.sets[p.Ino.Dataset()].find(p); x != nil {
		return *x, x.verified && x.state == present
	}
	return f, false
}

// remove removes the object of a replica.
func (r *Replicas) remove(object metadata.Ino) {
	if err := r.cfg.Store.Remove(context.Background(), object); err != nil {
		r.cfg.Node.Log().WithError(err).WithField("object", object.String()).Warn("replica not removed: it takes space until the job ends")
	}
}

// MayStore reports whether a piece that falls to this node may be stored without Adopt; no replica of it is made here
// afterwards. It returns false if there is a replica, which Adopt takes over, or which is being removed.
func (r *Replicas) MayStore(p fill.PieceID) bool {
	was := r.move(p, gone, absent, traded)
	return was != present && was != leaving
}

// move changes the state of a piece to to, if the state is one of from, and returns the previous state.
func (r *Replicas) move(p fill.PieceID, to state, from ...state) (was state) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sets[p.Ino.Dataset()]
	f := s.find(p)
	if f == nil {
		return gone
	}
	was = f.state
	if slices.Contains(from, was) {
		r.bytes.Add(s.put(f, to))
	}
	return was
}

// pick marks a replica as leaving and returns its set; nil if there is nothing to remove.
func (r *Replicas) pick(p fill.PieceID) *set {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sets[p.Ino.Dataset()]
	if f := s.find(p); f == nil || f.state != present || !r.leave(s, f) {
		return nil
	}
	return s
}

// leave marks a replica as leaving, or as kept if its object is now this node's own file. The caller holds mu.
func (r *Replicas) leave(s *set, f *file) bool {
	to := leaving
	if s.object(f.PieceID) == f.Ino && r.cfg.Stored(f.PieceID) {
		to = kept
	}
	r.bytes.Add(s.put(f, to))
	return to == leaving
}

// discard removes the objects of leaving replicas and sets their state to to. The caller holds removing.
func (r *Replicas) discard(s *set, to state, ps ...fill.PieceID) {
	for _, p := range ps {
		r.remove(s.object(p))
		r.move(p, to, leaving)
	}
	r.changed(s.id, s.wholes(ps...))
}

// awaitRemoval waits until the leaving replicas are removed.
func (r *Replicas) awaitRemoval() {
	r.removing.Lock()
	defer r.removing.Unlock()
}

// Adopt makes a piece that falls to this node from a replica, and returns its checksum. It uses this node's replica, a
// whole file in place, or another node's. It returns not ok if no replica is correct, and then soiled if some bytes
// were stored. With a checksum want, it compares a replica with want before it stores any of it.
func (r *Replicas) Adopt(ctx context.Context, p fill.PieceID, want [16]byte) (sum [16]byte, ok, soiled bool) {
	s := r.set(p.Ino)
	if s == nil {
		return sum, false, false
	}
	owner, size, at, err := s.owned(p)
	if err != nil {
		return sum, false, false
	}
	put := func(b []byte, off int64) error {
		soiled = true
		return r.cfg.Put(ctx, p.Ino, b, at(r.cfg.Node.Self())+off)
	}
	f, _ := r.look(p)
	before := want != [16]byte{}
	if f.state == present && (!before || f.sum == want) && r.Verify(ctx, p) == nil {
		object := s.object(p)
		if object == p.Ino {
			if r.move(p, gone, present) == present {
				return f.sum, true, false
			}
		} else if sum, err := r.copyOwn(ctx, object, size, f.sum, put); err == nil {
			if r.move(p, gone, present) == present {
				r.remove(object)
			}
			return sum, true, false
		}
	}
	for s.object(p) == p.Ino && r.move(p, gone, absent, traded, present) == leaving {
		r.awaitRemoval() // the removal would hit the bytes stored here next
	}
	puts := []func([]byte, int64) error{put}
	if before {
		puts = []func([]byte, int64) error{func([]byte, int64) error { return nil }, put}
	} else {
		want, soiled = f.sum, soiled || f.state == present // the replica may still be in place
	}
	if want == ([16]byte{}) {
		if want, err = s.sum(p); err != nil {
			return sum, false, soiled
		}
	}
	for _, id := range r.Where(nil, p, owner) {
		if id == r.cfg.Node.Self() {
			continue
		}
		for _, to := range puts {
			if sum, err = r.pull(ctx, s, id, p, want, nil, to); err != nil {
				break
			}
		}
		if err == nil {
			return sum, true, false
		}
		if errors.Is(err, syscall.ENOSPC) || ctx.Err() != nil {
			break
		}
		r.cfg.Node.Log().WithError(err).Debug("file not copied from a replica")
	}
	return sum, false, soiled
}

// copyOwn calls put with the bytes of an object of this node, and compares them with their checksum.
func (r *Replicas) copyOwn(ctx context.Context, object metadata.Ino, size int64, sum [16]byte, put func(p []byte, off int64) error) ([16]byte, error) {
	check, buf := stagein.NewChecker(sum, size), make([]byte, min(size, wire.MaxData))
	for off := int64(0); off < size; {
		n, err := r.cfg.Store.ReadAt(ctx, object, buf[:min(size-off, int64(len(buf)))], off)
		if n == 0 && err == nil {
			err = ErrNotHere // given back just now
		}
		if err == nil {
			err = put(buf[:n], off)
		}
		if err != nil {
			return sum, err
		}
		_, _ = check.Write(buf[:n]) // never fails
		off += int64(n)
	}
	return sum, check.Check()
}

// Bytes implements chunkstore.Spare.
func (r *Replicas) Bytes() int64 { return r.bytes.Load() }

// A call gives back at least 1/giveUnit of the node's room, so that a growing file does not wait at each step.
const (
	giveUnit  = 16
	mostGiven = 1 << 30 // bytes, unless more are needed
)

// GiveBack implements chunkstore.Spare. It gives back replicas of the largest set, the last ones in the making order
// first.
func (r *Replicas) GiveBack(n int64) bool {
	r.removing.Lock()
	defer r.removing.Unlock()
	if free, err := r.cfg.Store.FreeNow(); err == nil && free >= n {
		return true // another call has freed it
	}
	sp, _ := r.cfg.Store.Space(context.Background()) // local; on an error the zero space gives back n bytes
	s, ps := r.pickLast(max(n, min(sp.Capacity/giveUnit, mostGiven)))
	if len(ps) == 0 {
		return false
	}
	r.discard(s, gone, ps...)
	r.cfg.Node.Log().WithField("dataset", s.id).WithField("pieces", len(ps)).Info("replicas evicted: other files need the space")
	return true
}

// pickLast marks the last replicas of the largest set, n bytes or more, as leaving.
func (r *Replicas) pickLast(n int64) (s *set, ps []fill.PieceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(ps) == 0 {
		s = nil
		for _, x := range r.sets {
			if x.spare > 0 && (s == nil || x.spare > s.spare) {
				s = x
			}
		}
		if s == nil {
			return nil, nil
		}
		freed := int64(0)
		for i := len(s.files) - 1; i >= 0 && freed < n; i-- {
			f := &s.files[i]
			s.ceiling = min(s.ceiling, f.pos)
			if f.state == present && r.leave(s, f) {
				ps, freed = append(ps, f.PieceID), freed+f.size
			}
		}
		s.given += freed
	}
	return s, ps
}

// trade gives up replicas of files that this node reads less often than files that it lacks, to make room for some of
// these. It reports whether there were any. They were made before the plan was known.
func (r *Replicas) trade(s *set) bool {
	r.removing.Lock()
	defer r.removing.Unlock()
	sp, _ := r.cfg.Store.Space(context.Background()) // local; on an error the zero space gives room to one file
	ps := r.pickWorse(s, min(sp.Capacity/giveUnit, mostGiven))
	if len(ps) > 0 {
		r.discard(s, traded, ps...)
	}
	return len(ps) > 0
}

// pickWorse marks such replicas, n bytes or more, as leaving, the last ones first.
func (r *Replicas) pickWorse(s *set, n int64) (ps []fill.PieceID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.made == len(s.files) || s.order.name() == "" {
		return nil
	}
	end, need := (s.files[s.made].pos/s.order.width()+1)*s.order.width(), int64(0) // end of group
	for i := s.made; i < len(s.files) && s.files[i].pos < end && need <= n; i++ {
		if f := &s.files[i]; f.state == absent {
			need += f.size
		}
	}
	for i := len(s.files) - 1; i >= 0 && s.files[i].pos > end && need > 0; i-- {
		if f := &s.files[i]; f.state == present && r.leave(s, f) {
			ps, need = append(ps, f.PieceID), need-f.size
		}
	}
	return ps
}

// wholes returns, sorted, the files of pieces that are whole on one node: the kernel reads only these directly.
func (s *set) wholes(ps ...fill.PieceID) (inos []metadata.Ino) {
	for _, p := range ps {
		if s.striped[p.Ino] == nil {
			inos = append(inos, p.Ino)
		}
	}
	slices.Sort(inos)
	return inos
}
