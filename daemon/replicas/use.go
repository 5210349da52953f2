package replicas

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// ErrNotHere says that this node does not have the replica.
var ErrNotHere = fmt.Errorf("no replica is here: %w", syscall.EAGAIN)

// Verify compares a replica with its checksum, once after it was made. It removes one that does
// not match: ErrNotHere.
func (r *Replicas) Verify(ctx context.Context, ino metadata.Ino) error {
	if _, verified := r.look(ino); verified {
		return nil
	}
	bad := r.Compare(ctx, ino)
	if bad == nil || ctx.Err() != nil || errors.Is(bad, ErrNotHere) {
		return bad
	}
	r.cfg.Node.Log().WithError(bad).WithField("inode", ino.String()).Warn("replica differs from what was staged: removed; readers get another copy")
	r.remove(ino)
	return fmt.Errorf("%v: %w", bad, ErrNotHere)
}

// Compare compares a replica with its checksum, even if it was verified before.
func (r *Replicas) Compare(ctx context.Context, ino metadata.Ino) error {
	f, _ := r.look(ino)
	if f.state != present {
		return ErrNotHere
	}
	err := r.cfg.Compare(ctx, fill.PieceSum{Ino: ino, Len: f.size, Whole: true, Sum: f.sum})
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.sets[ino.Dataset()].find(ino); f != nil {
		f.verified = err == nil
	}
	return err
}

// look returns a file of a set, and whether it is a replica that was verified.
func (r *Replicas) look(ino metadata.Ino) (f file, verified bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if x := r.sets[ino.Dataset()].find(ino); x != nil {
		return *x, x.verified && x.state == present
	}
	return f, false
}

// remove removes a replica, which is not made again.
func (r *Replicas) remove(ino metadata.Ino) {
	if !r.release(ino) {
		return
	}
	if err := r.cfg.Store.Remove(context.Background(), ino); err != nil {
		r.cfg.Node.Log().WithError(err).WithField("inode", ino.String()).Warn("replica not removed: it takes space until the job ends")
	}
	r.changed(ino.Dataset(), []metadata.Ino{ino})
}

// release takes a file out of the replicas and leaves its object. It reports whether it was one.
func (r *Replicas) release(ino metadata.Ino) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sets[ino.Dataset()]
	f := s.find(ino)
	if f == nil || f.state != present {
		return false
	}
	r.bytes.Add(s.put(f, gone))
	return true
}

// Adopt makes a file that falls to this node from a replica, and returns its checksum: from
// its own, in place, or from another node's. It reports false if no replica is right.
func (r *Replicas) Adopt(ctx context.Context, ino metadata.Ino) (sum [16]byte, ok bool) {
	if !r.on.Load() {
		return sum, false
	}
	if r.Has(ino) && r.Verify(ctx, ino) == nil {
		f, _ := r.look(ino)
		return f.sum, r.release(ino)
	}
	r.mu.RLock()
	s := r.sets[ino.Dataset()]
	r.mu.RUnlock()
	if s == nil {
		return sum, false
	}
	want, a, err := s.table.Record(ino)
	if err != nil {
		return sum, false
	}
	if f, _ := r.look(ino); f.sum != ([16]byte{}) {
		want = f.sum
	}
	for _, id := range r.Where(nil, ino, a.Layout.Node) {
		if id == r.cfg.Node.Self() {
			continue
		}
		put := func(p []byte, off int64) error { return r.cfg.Put(ctx, ino, p, off) }
		if sum, err = r.pull(ctx, id, ino, a.Size, want, put); err == nil {
			return sum, true
		}
		if errors.Is(err, syscall.ENOSPC) || ctx.Err() != nil {
			break
		}
		r.cfg.Node.Log().WithError(err).Debug("file not copied from a replica")
	}
	return sum, false
}

// Bytes implements chunkstore.Spare.
func (r *Replicas) Bytes() int64 { return r.bytes.Load() }

// At least one part in giveUnit of the node's room is given back at once, so that a growing file
// does not wait at each step.
const (
	giveUnit  = 16
	mostGiven = 1 << 30 // bytes, unless more are needed
)

// GiveBack implements chunkstore.Spare: the last replicas in the order of making go first,
// those of the largest set.
func (r *Replicas) GiveBack(n int64) bool {
	r.giving.Lock()
	defer r.giving.Unlock()
	if free, err := r.cfg.Store.FreeNow(); err == nil && free >= n {
		return true // another call has freed it
	}
	sp, _ := r.cfg.Store.Space(context.Background()) // local; on an error the zero space gives back n bytes
	id, inos := r.pickLast(max(n, min(sp.Capacity/giveUnit, mostGiven)))
	for _, ino := range inos {
		if err := r.cfg.Store.Remove(context.Background(), ino); err != nil {
			r.cfg.Node.Log().WithError(err).WithField("inode", ino.String()).Warn("replica not removed: it takes space until the job ends")
		}
	}
	if len(inos) == 0 {
		return false
	}
	r.cfg.Node.Log().WithField("dataset", id).WithField("files", len(inos)).Info("replicas given back: other files need the room")
	r.changed(id, inos)
	return true
}

// pickLast removes the last replicas from the largest set, n bytes or more.
func (r *Replicas) pickLast(n int64) (id metadata.DatasetID, inos []metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s *set
	for _, x := range r.sets {
		if s == nil || x.spare > s.spare {
			s = x
		}
	}
	if s == nil {
		return 0, nil
	}
	freed := int64(0)
	for i := len(s.files) - 1; i >= 0 && freed < n; i-- {
		f := &s.files[i]
		s.ceiling = min(s.ceiling, f.pos)
		if f.state == present {
			inos, freed = append(inos, f.ino), freed+f.size
			r.bytes.Add(s.put(f, gone))
		}
	}
	s.given += freed
	slices.Sort(inos)
	return s.id, inos
}
