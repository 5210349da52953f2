package fill

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// Refetch fetches this node's pieces of damaged files again and stores them over the old ones, once they were compared.
// Readers wait meanwhile. It returns the errors by file; a file that failed is no longer here, also for a daemon that is
// started later, and its next read fetches it or fails. ESTALE means that the source has other bytes than when it was
// staged: they are not served.
func (f *Fill) Refetch(ctx context.Context, inos []metadata.Ino) (map[metadata.Ino]error, error) {
	was, err := f.sums()
	if err != nil {
		return nil, err
	}
	failed := make(map[metadata.Ino]error)
	var all []PieceID
	for _, ino := range inos {
		ps, err := f.forget(ino, was)
		if err != nil {
			failed[ino] = err
		}
		all = append(all, ps...)
	}
	for _, p := range all {
		f.ask(p) // all at once
	}
	for _, p := range all {
		if err := f.await(ctx, p, f.ask); err != nil {
			if ctx.Err() != nil {
				return failed, ctx.Err()
			}
			failed[p.Ino] = err
			if f.dropped.changed(p) {
				failed[p.Ino] = errChanged(p)
			}
		}
	}
	return failed, nil
}

// dropped is the pieces that Refetch has dropped, also when they are here again. They have to be what they were, whoever
// brings them.
type dropped struct {
	mu     sync.Mutex
	pieces map[PieceID]*droppedPiece // guarded by mu
}

type droppedPiece struct {
	sum     [16]byte // zeros: not known
	changed bool     // the source has had another one since
}

func errChanged(p PieceID) error {
	return fmt.Errorf("inode %v: the source has other bytes than when it was staged: %w", p.Ino, syscall.ESTALE)
}

func (d *dropped) add(p PieceID, sum [16]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pieces == nil {
		d.pieces = make(map[PieceID]*droppedPiece)
	}
	d.pieces[p] = &droppedPiece{sum: sum}
}

// checker makes the checker of a piece of n bytes of which only the CRC-32C is known; nil for others.
func (d *dropped) checker(p PieceID, n int64) *stagein.Checker {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.pieces[p]; x != nil && stagein.IsCRC(x.sum) {
		return stagein.NewChecker(x.sum, n)
	}
	return nil
}

// accepts reports whether a piece is what it was. c, if not nil, is its checker.
func (d *dropped) accepts(p PieceID, sum [16]byte, c *stagein.Checker) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.pieces[p]
	switch {
	case x == nil || x.sum == [16]byte{}:
		return true
	case stagein.IsCRC(x.sum):
		return c == nil || c.Check() == nil
	}
	return x.sum == sum
}

// fromSource is accepts for bytes of the source: ESTALE if they are others.
func (d *dropped) fromSource(p PieceID, sum [16]byte, c *stagein.Checker) error {
	ok := d.accepts(p, sum, c)
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.pieces[p]; x != nil {
		x.changed = !ok
	}
	if !ok {
		return errChanged(p)
	}
	return nil
}

// changed reports whether the source has other bytes of a piece than when it was staged.
func (d *dropped) changed(p PieceID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.pieces[p]
	return x != nil && x.changed
}

// has reports whether a piece was dropped. Other bytes may be stored where it has holes, so that their zeros must be, too.
func (d *dropped) has(p PieceID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pieces[p] != nil
}

// lastSum returns the checksum of a piece of the file a: journaled, or that of the manifest if it is zeros.
func lastSum(f *Fill, p PieceID, a *metadata.Attr, journaled [16]byte) ([16]byte, error) {
	if journaled != ([16]byte{}) {
		return journaled, nil
	}
	if files, ok := f.cfg.Files.(FileSums); ok && a.Layout.Kind == metadata.Local {
		sum, _, err := files.Record(p.Ino)
		return sum, err
	}
	crcs, err := f.chunks(a)
	if err != nil || int(p.Chunk) >= crcs.Len() {
		return [16]byte{}, err
	}
	return stagein.CRCSum(crcs.At(int(p.Chunk))), nil
}

// forget drops this node's pieces of a file, with the checksums was, from the set of those present, and returns them.
func (f *Fill) forget(ino metadata.Ino, was map[PieceID][16]byte) ([]PieceID, error) {
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil {
		return nil, err
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	var mine []PieceID
	for chunk := range s.pieces() {
		if len(s.order) == 0 || m.Holder(ino, s.owner(chunk)) != f.cfg.Self {
			continue
		}
		p := PieceID{ino, chunk}
		if f.overflow.has(p) {
			continue // it is not here
		}
		sum, err := lastSum(f, p, &a, was[p])
		if err != nil {
			return mine, err
		}
		if err := f.journal.add(p, droppedSum); err != nil {
			return mine, err
		}
		f.drop(&s, p, sum)
		mine = append(mine, p)
	}
	return mine, nil
}

// drop removes a piece, which has the checksum sum, from the set of those present.
func (f *Fill) drop(s *placement, p PieceID, sum [16]byte) {
	f.dropped.add(p, sum)
	if f.present.remove(p) {
		_, n, _ := s.at(p.Chunk, f.cfg.Self)
		f.bytes.Add(-n)
		if p.Chunk == 0 {
			f.files.Add(-1)
		}
	}
	if f.cfg.Dropped != nil {
		f.cfg.Dropped(p.Ino)
	}
}

// dropAgain drops the pieces that an earlier run of the daemon has dropped and not stored since.
func dropAgain(f *Fill, all map[PieceID]bool) error {
	if len(all) == 0 {
		return nil
	}
	was, err := f.sums()
	if err != nil {
		return err
	}
	m, _ := f.cfg.Watch()
	for p := range all {
		_, a, err := f.cfg.Files.Origin(p.Ino)
		if err != nil {
			return err
		}
		sum, err := lastSum(f, p, &a, was[p])
		if err != nil {
			return err
		}
		s := placementOf(m, a)
		f.drop(&s, p, sum)
	}
	return nil
}

// copied reports whether a piece came from what an earlier job has kept, or from a replica.
func copied(f *Fill, p PieceID) bool {
	if f.cfg.Copy == nil && f.cfg.Kept == nil {
		return false
	}
	from, a, err := f.cfg.Files.Origin(p.Ino)
	if err != nil || IsOverflow(&a) {
		return false
	}
	var sum [16]byte
	adopted := false
	if a.Layout.Kind == metadata.Local {
		sum, adopted = adoptKept(f, &from, &a)
	}
	ok := adopted
	if !ok && f.cfg.Copy != nil {
		sum, ok = f.cfg.Copy(f.ctx, p)
	}
	if !ok || !f.dropped.accepts(p, sum, nil) || f.journal.add(p, sum) != nil {
		return false
	}
	n := a.Size
	if a.Layout.Kind != metadata.Local {
		n = min(a.Layout.Chunk(), a.Size-int64(p.Chunk)*a.Layout.Chunk())
	}
	if adopted {
		f.adopted.Add(1)
		f.adoptedBytes.Add(n)
	}
	f.markPresent(p, n)
	return true
}

// healers is how many files are copied from replicas at a time.
const healers = 8

// heal copies, before the source is read, what an earlier job has kept, and from replicas pieces that
// fall to this node because others are lost.
func heal(f *Fill, m cluster.Map) {
	if f.cfg.Kept == nil && (f.cfg.Copy == nil || len(downIn(m)) == 0) {
		return
	}
	list, err := f.list(m)
	if err != nil {
		return // the fetch reports it
	}
	var g errgroup.Group
	g.SetLimit(healers)
	for _, p := range list {
		if f.ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			fl, mine := f.flights.join(p)
			if mine && copied(f, p) {
				f.finish(p, fl, nil)
			} else if mine {
				f.finish(p, fl, errWithdrawn) // a reader that waits fetches it
			}
			return nil
		})
	}
	_ = g.Wait() // no function fails
}
