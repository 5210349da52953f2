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

// Refetch refetches this node's pieces of damaged files and, after comparing them, stores them over the old ones.
// Readers wait meanwhile. It returns the errors by file. A file that failed counts as missing, also after a restart of
// the daemon, and its next read fetches it or fails. ESTALE means that the source no longer has the staged bytes: they
// are not served.
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
		f.ask(p) // start all fetches at once
	}
	for _, p := range all {
		err := f.await(ctx, p, f.ask)
		for err == nil && !f.present.has(p) { // that fetch had begun before the piece was dropped
			err = f.await(ctx, p, f.ask)
		}
		if err != nil {
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

// dropped tracks the pieces whose bytes in this node's object must not be trusted, even once they are here again:
// Refetch dropped them, or wrong bytes were stored. Whatever fetches such a piece, it must equal the staged one, and is
// compared before it is stored.
type dropped struct {
	mu     sync.Mutex
	pieces map[PieceID]*droppedPiece // guarded by mu
}

type droppedPiece struct {
	sum     [16]byte // zeros: not known
	changed bool     // the source has had other bytes since
}

func errChanged(p PieceID) error {
	return fmt.Errorf("inode %v: the source has changed since the file was staged: %w", p.Ino, syscall.ESTALE)
}

func (d *dropped) add(p PieceID, sum [16]byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pieces == nil {
		d.pieces = make(map[PieceID]*droppedPiece)
	}
	d.pieces[p] = &droppedPiece{sum: sum}
}

// note records whether the source has other bytes for a dropped piece. It returns false if p was not dropped.
func (d *dropped) note(p PieceID, changed bool) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.pieces[p]
	if x != nil {
		x.changed = changed
	}
	return x != nil
}

// sum returns the checksum that a dropped piece must have, or false if p was not dropped.
func (d *dropped) sum(p PieceID) ([16]byte, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x := d.pieces[p]; x != nil {
		return x.sum, true
	}
	return [16]byte{}, false
}

// changed reports whether the source has other bytes for a dropped piece than the staged ones.
func (d *dropped) changed(p PieceID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.pieces[p]
	return x != nil && x.changed
}

// has reports whether a piece was dropped. Its holes may contain wrong bytes, so its zeros must be stored too.
func (d *dropped) has(p PieceID) bool {
	_, ok := d.sum(p)
	return ok
}

// expected returns the checksum that a piece must have. It is known for a dropped piece, and from the manifest if the
// dataset was staged before that was published (by nodes that may be lost now). Zeros: not known.
func expected(f *Fill, p PieceID) ([16]byte, error) {
	if sum, ok := f.dropped.sum(p); ok || !f.cfg.Origins.Staged {
		return sum, nil
	}
	_, a, err := f.cfg.Files.Origin(p.Ino)
	if err != nil {
		return [16]byte{}, err
	}
	return lastSum(f, p, &a, [16]byte{})
}

// checker returns a checker for a piece of n bytes of which only the CRC-32C is known, or nil for other pieces.
func checker(f *Fill, p PieceID, n int64) *stagein.Checker {
	want, err := expected(f, p)
	if err != nil || !stagein.IsCRC(want) {
		return nil
	}
	return stagein.NewChecker(want, n)
}

// compareSource returns ESTALE if the source gave other bytes of a piece than expected. sum is their checksum; c, if
// not nil, their checker. Without c, a piece of which only the CRC-32C is known cannot be compared: errWithdrawn.
func compareSource(f *Fill, p PieceID, sum [16]byte, c *stagein.Checker) error {
	want, err := expected(f, p)
	ok := sum == want
	switch {
	case err != nil:
		return err
	case want == [16]byte{}:
		ok = true
	case stagein.IsCRC(want) && c == nil:
		return fmt.Errorf("inode %v: %w", p.Ino, errWithdrawn)
	case stagein.IsCRC(want):
		ok = c.Check() == nil
	}
	if !f.dropped.note(p, !ok) && !ok {
		err = soil(f, p, want)
		f.dropped.note(p, true)
	}
	if err == nil && !ok {
		err = errChanged(p)
	}
	return err
}

// soil records, also for later runs of the daemon, that wrong bytes of a piece may have been stored here, possibly over
// the right ones: the piece is refetched.
func soil(f *Fill, p PieceID, sum [16]byte) error {
	_, a, err := f.cfg.Files.Origin(p.Ino)
	if err != nil {
		return err
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	f.drop(&s, p, sum)
	return f.journal.add(p, droppedSum)
}

// lastSum returns the checksum of a piece of the file a: the journaled one, or the manifest's if that is zeros.
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

// forget drops this node's pieces of a file from the set of present pieces, and returns them: its own, and those that
// it fetched while another node was lost. was holds the checksums of all pieces.
func (f *Fill) forget(ino metadata.Ino, was map[PieceID][16]byte) ([]PieceID, error) {
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil {
		return nil, err
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	var mine []PieceID
	for chunk := range s.pieces() {
		p := PieceID{ino, chunk}
		if len(s.order) == 0 || m.Holder(ino, s.owner(chunk)) != f.cfg.Self && !f.present.has(p) {
			continue
		}
		if f.overflow.has(p) {
			continue // it is not stored here
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

// drop removes a piece with the checksum sum from the set of present pieces.
func (f *Fill) drop(s *placement, p PieceID, sum [16]byte) {
	f.dropped.add(p, sum)
	if f.present.remove(p) {
		f.bytes.Add(-max(min(s.chunk, s.a.Size-int64(p.Chunk)*s.chunk), 0))
		if p.Chunk == 0 {
			f.files.Add(-1)
		}
	}
	if f.cfg.Dropped != nil {
		f.cfg.Dropped(p.Ino)
	}
}

// dropAgain drops the pieces that an earlier run of the daemon dropped and did not store since. A piece whose checksum
// cannot be found is not served by this run.
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
		var sum [16]byte
		if err == nil {
			sum, err = lastSum(f, p, &a, was[p])
		}
		if err != nil {
			f.cfg.Log.WithError(err).WithField("inode", p.Ino.String()).Error("checksum of a damaged file not found: reads fail with EIO until the daemon restarts")
			sum = droppedSum // matches no piece
		}
		s := placementOf(m, a)
		f.drop(&s, p, sum)
	}
	return nil
}

// copied reports whether it could copy a piece from data that an earlier job kept, or from a replica.
func copied(f *Fill, p PieceID) bool {
	if f.cfg.Copy == nil && f.cfg.Kept == nil {
		return false
	}
	from, a, err := f.cfg.Files.Origin(p.Ino)
	if err != nil || IsOverflow(&a) || f.unpacked.has(p) {
		return false
	}
	var sum [16]byte
	want, dropped := f.dropped.sum(p)
	adopted := false
	if a.Layout.Kind == metadata.Local && !dropped && !f.cfg.Origins.Staged { // it cannot be compared before storing
		sum, adopted = adoptKept(f, &from, &a)
	}
	ok, soiled := adopted, false
	if !ok && f.cfg.Copy != nil {
		sum, ok, soiled = f.cfg.Copy(f.ctx, p, want)
	}
	if soiled && !dropped {
		if want, err = expected(f, p); err == nil {
			err = soil(f, p, want)
		}
	}
	if !ok || err != nil || f.journal.add(p, sum) != nil {
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

// healers is the number of files copied from replicas concurrently.
const healers = 8

// heal runs before the source is read: it adopts data that an earlier job kept, and copies from replicas the pieces
// that fall to this node because others are lost.
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
				f.finish(p, fl, errWithdrawn) // a waiting reader fetches it
			}
			return nil
		})
	}
	_ = g.Wait() // no function fails
}
