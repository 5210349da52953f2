package home

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
)

const (
	namedAtOnce  = 1 << 15               // records that a node reads for one answer
	namedPause   = 10 * time.Millisecond // pause between two answers
	maxSuspects  = 1 << 16               // inodes that one sweep examines; the next one takes more
	orphanPasses = 3                     // passes that must find no name of an inode before it is removed
)

// orphans removes the inodes of this home without a name on any node, and corrects the link counts of files with fewer
// names than links. A transaction leaves a nameless inode if its coordinator was lost before the name was entered. A
// link count stays too high if a name is removed while this home is given up. A file without a name becomes a recorded
// orphan; an empty directory is removed.
//
// Nothing is changed unless all nodes serve during the whole run, since any of them may have the name. A name that
// moves while the nodes are asked in turn can be missed; then the inode's ctime changes. The ctime stays the same if
// the name moves to a shard of a directory that is split, or because its home was given up. Each of these happens once,
// hence orphanPasses.
func (w *sweeper) orphans(ctx context.Context) error {
	var suspects map[metadata.Ino]pebblestore.Links
	epoch := w.s.node.View().Map.Epoch
	for pass := range orphanPasses {
		if pass > 0 {
			if err := node.Pause(ctx, w.s.sweepPause()); err != nil {
				return err
			}
		}
		now, err := w.s.suspects(ctx)
		if err != nil {
			w.s.log.WithError(err).Debug("search for inodes without a name postponed: not all nodes answer")
			w.found.Undone = true
			return nil
		}
		if pass == 0 {
			suspects = now
		}
		for ino, links := range suspects {
			if at, still := now[ino]; !still || at != links {
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
	return w.removeOrphans(ctx, suspects)
}

func (w *sweeper) removeOrphans(ctx context.Context, suspects map[metadata.Ino]pebblestore.Links) error {
	var errs []error
	for ino, links := range suspects {
		err := w.s.LowerLinks(ino, links)
		w.s.revokeFor(ctx, rpc.NoNode, time.Time{}, attrKey(ino))
		switch {
		case err == nil && links.Count == 0:
			w.found.Inodes++
		case err == nil:
		case errors.Is(err, syscall.ENOTEMPTY):
			w.s.log.WithField("inode", ino.String()).Error("a directory that is not empty has lost its name: run bivouac check")
		case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ENOENT):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// suspects returns the inodes of this home that have fewer names than links now, with the number of their names and
// their ctimes. It finds at most maxSuspects inodes with one link and at most maxSuspects files with several.
func (s *Server) suspects(ctx context.Context) (map[metadata.Ino]pebblestore.Links, error) {
	if err := s.allServe(); err != nil {
		return nil, err
	}
	linked, err := s.HardLinked(ctx, maxSuspects)
	if err != nil {
		return nil, err
	}
	names := make(map[metadata.Ino]uint32, len(linked))
	count := func(ino metadata.Ino) {
		if _, ok := linked[ino]; ok {
			names[ino]++
		}
	}
	here := make(inoSet)
	if err := s.eachNamed(ctx, s.node.Self(), func(ino metadata.Ino) { here.add(ino); count(ino) }); err != nil {
		return nil, err
	}
	found, err := s.OrphanCandidates(ctx, here.has, maxSuspects)
	for _, n := range s.node.View().Map.Nodes {
		if err != nil || len(found)+len(linked) == 0 {
			break
		}
		if n.ID != s.node.Self() {
			err = s.eachNamed(ctx, n.ID, func(ino metadata.Ino) { delete(found, ino); count(ino) })
		}
	}
	for ino, l := range found {
		found[ino] = pebblestore.Links{Ctime: l.Ctime}
	}
	for ino, l := range linked {
		if n := names[ino]; n > 0 && n < l.Count {
			found[ino] = pebblestore.Links{Count: n, Ctime: l.Ctime}
		}
	}
	return found, err
}

// eachNamed calls fn for each inode of this home that has a name on node by.
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

// namedReq asks a node, from a key on, for the inodes of the caller's home of which it has a name.
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

// inoSet is a set of inodes of one home, one bit each.
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
