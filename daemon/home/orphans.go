package home

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	namedAtOnce  = 1 << 15               // records that a node reads for one answer
	namedPause   = 10 * time.Millisecond // between two answers
	maxSuspects  = 1 << 16               // inodes that one sweep looks at; the next takes more
	orphanPasses = 3                     // that must find no name of an inode before it is removed
)

// orphans removes the inodes of this home that no node has a name of. A
// transaction leaves them if its coordinator was lost before the name was
// entered. A file without a name becomes a recorded orphan, an empty directory is
// removed.
//
// Nothing is removed unless all nodes serve from the beginning to the end, since
// any of them may have the name. A name that moves while the nodes are asked one
// after the other can be missed; then the inode's ctime changes. It does not if
// the name moves to a shard of a directory that is split, or because its home was
// given up; each happens once, hence orphanPasses.
func (w *sweeper) orphans(ctx context.Context) error {
	var suspects map[metadata.Ino]metadata.Time
	epoch := w.s.node.View().Map.Epoch
	for pass := range orphanPasses {
		if pass > 0 {
			if err := node.Pause(ctx, w.s.sweepPause()); err != nil {
				return err
			}
		}
		now, err := w.s.suspects(ctx)
		if err != nil {
			w.s.log.WithError(err).Debug("search for inodes without a name is put off: not all nodes answer")
			w.found.Undone = true
			return nil
		}
		if pass == 0 {
			suspects = now
		}
		for ino, ctime := range suspects {
			if at, still := now[ino]; !still || at != ctime {
				delete(suspects, ino)
			}
		}
		if len(suspects) == 0 {
			return nil
		}
	}
	if w.s.node.View().Map.Epoch != epoch {
		w.found.Undone = true
		return nil
	}
	return w.removeOrphans(suspects)
}

func (w *sweeper) removeOrphans(suspects map[metadata.Ino]metadata.Time) error {
	var errs []error
	for ino, ctime := range suspects {
		err := w.s.MarkOrphan(ino, ctime)
		switch {
		case err == nil:
			w.found.Inodes++
		case errors.Is(err, syscall.ENOTEMPTY):
			w.s.log.WithField("inode", ino.String()).Error("a directory that is not empty has lost its name: run bivouac check")
		case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ENOENT):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// suspects is the inodes of this home that no node has a name of now, and their
// ctimes.
func (s *Server) suspects(ctx context.Context) (map[metadata.Ino]metadata.Time, error) {
	if err := s.allServe(); err != nil {
		return nil, err
	}
	here := make(inoSet)
	if err := s.eachNamed(ctx, s.node.Self(), here.add); err != nil {
		return nil, err
	}
	found, err := s.OrphanCandidates(ctx, here.has, maxSuspects)
	for _, n := range s.node.View().Map.Nodes {
		if err != nil || len(found) == 0 {
			break
		}
		if n.ID != s.node.Self() {
			err = s.eachNamed(ctx, n.ID, func(ino metadata.Ino) { delete(found, ino) })
		}
	}
	return found, err
}

// eachNamed calls fn with all inodes of this home that a node has a name of.
func (s *Server) eachNamed(ctx context.Context, by metadata.NodeID, fn func(metadata.Ino)) error {
	for q := (namedReq{}); ; {
		var r namedReply
		if err := s.ask(ctx, by, wire.OpReferenced, q, &r); err != nil {
			return err
		}
		for _, ino := range r.Inos {
			fn(ino)
		}
		if len(r.Next) == 0 {
			return nil
		}
		q.After = r.Next
		if err := node.Pause(ctx, namedPause); err != nil {
			return err
		}
	}
}

// namedReq asks which inodes of the asker's home a node has a name of, from a key on.
type namedReq struct {
	After []byte `json:"after,omitempty"`
}

type namedReply struct {
	Inos []metadata.Ino `json:"inos"`
	Next []byte         `json:"next,omitempty"`
}

func (s *Server) onNamed(ctx context.Context, peer metadata.NodeID, q *namedReq) (namedReply, error) {
	inos, next, err := s.Referenced(ctx, peer, q.After, namedAtOnce)
	return namedReply{inos, next}, err
}

// inoSet is a set of inodes of one home, one bit for each.
type inoSet map[uint64]*[64]uint64 // by the counter's bits above the lowest 12

func (s inoSet) add(ino metadata.Ino) {
	c := ino.Counter()
	page := s[c>>12]
	if page == nil {
		page = new([64]uint64)
		s[c>>12] = page
	}
	page[c>>6&63] |= 1 << (c & 63)
}

func (s inoSet) has(ino metadata.Ino) bool {
	c := ino.Counter()
	page := s[c>>12]
	return page != nil && page[c>>6&63]&(1<<(c&63)) != 0
}
