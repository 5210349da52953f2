package fill

import (
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Refetch fetches this node's pieces of damaged files again and stores them over the old ones. Readers wait meanwhile. It
// returns the errors by file; a file that failed is no longer here, and its next read fetches it or fails. ESTALE means that
// the source has changed.
func (f *Fill) Refetch(ctx context.Context, inos []metadata.Ino) (map[metadata.Ino]error, error) {
	was, err := f.sums()
	if err != nil {
		return nil, err
	}
	failed := make(map[metadata.Ino]error)
	var all []PieceID
	for _, ino := range inos {
		ps, err := f.forget(ino)
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
		}
	}
	now, err := f.sums()
	if err != nil {
		return failed, err
	}
	for _, p := range all {
		if old, ok := was[p]; ok && failed[p.Ino] == nil && now[p] != old {
			failed[p.Ino] = fmt.Errorf("inode %v: the source has other bytes than when it was staged: %w", p.Ino, syscall.ESTALE)
		}
	}
	return failed, nil
}

// forget drops this node's pieces of a file from the set of those present, and returns them.
func (f *Fill) forget(ino metadata.Ino) ([]PieceID, error) {
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
		mine = append(mine, p)
		if !f.present.remove(p) {
			continue
		}
		_, n, _ := s.at(chunk, f.cfg.Self)
		f.bytes.Add(-n)
		if chunk == 0 {
			f.files.Add(-1)
		}
	}
	return mine, nil
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
	if !ok || f.journal.add(p, sum) != nil {
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
