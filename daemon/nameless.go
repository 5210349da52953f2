package daemon

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	namedAtOnce = 1 << 15               // records that a node looks through for one answer
	namedPause  = 10 * time.Millisecond // between two answers
	maxSuspects = 1 << 16               // inodes that one run looks at; the next takes more
	// namelessPasses is how often nothing on any node may name an inode before it
	// is removed. A name that moves while the nodes are asked one after the other
	// can be missed: but then the inode's ctime changes, unless the name moves to
	// a section of a directory that becomes wide, or because its home was taken
	// for down, which each happens once.
	namelessPasses = 3
)

// nameless removes the inodes of this home that nothing names on any node, as a
// transaction leaves them whose name could not be entered when its coordinator
// was back: files become orphans, directories go. Nothing is done unless all
// nodes are there from the beginning to the end: a name may be on any of them.
func (s *sweeper) nameless(ctx context.Context) error {
	d := s.d
	var suspects map[metadata.Ino]metadata.Time
	epoch := d.epoch()
	for pass := range namelessPasses {
		if pass > 0 {
			if err := node.Pause(ctx, d.sweepPause()); err != nil {
				return err
			}
		}
		now, err := s.suspects(ctx)
		if err != nil {
			s.d.log.WithError(err).Debug("inodes without a name are not looked for")
			s.found.Undone = true
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
	if d.epoch() != epoch {
		s.found.Undone = true
		return nil
	}
	return s.disown(suspects)
}

// disown removes what nothing names.
func (s *sweeper) disown(suspects map[metadata.Ino]metadata.Time) error {
	var errs []error
	for ino, ctime := range suspects {
		err := s.d.meta.MarkOrphan(ino, ctime)
		switch {
		case err == nil:
			s.found.Inodes++
		case errors.Is(err, syscall.ENOTEMPTY):
			s.d.log.WithField("inode", ino.String()).Error("a directory with something in it has no name: see bivouac check")
		case !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.ENOENT):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// suspects is the inodes of this home that nothing names now, by their ctime.
func (s *sweeper) suspects(ctx context.Context) (map[metadata.Ino]metadata.Time, error) {
	d := s.d
	nodes := d.View().Map.Nodes
	for _, n := range nodes {
		if !node.Serving(n) {
			return nil, fmt.Errorf("%s is %v: %w", n.Host, n.State, syscall.EHOSTDOWN)
		}
	}
	here := make(inoSet)
	if err := d.eachNamed(ctx, d.job.Self, here.add); err != nil {
		return nil, err
	}
	found, err := d.meta.OrphanCandidates(ctx, here.has, maxSuspects)
	for _, n := range nodes {
		if err != nil || len(found) == 0 {
			break
		}
		if n.ID != d.job.Self {
			err = d.eachNamed(ctx, n.ID, func(ino metadata.Ino) { delete(found, ino) })
		}
	}
	return found, err
}

// eachNamed calls fn with all inodes of this home that a node names.
func (d *Daemon) eachNamed(ctx context.Context, by metadata.NodeID, fn func(metadata.Ino)) error {
	for q := (namedReq{}); ; {
		var r namedReply
		if err := d.askNode(ctx, by, wire.OpReferenced, q, &r); err != nil {
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

// namedReq asks which inodes of the asker's home a node names, from a key on.
type namedReq struct {
	After []byte `json:"after,omitempty"`
}

type namedReply struct {
	Inos []metadata.Ino `json:"inos"`
	Next []byte         `json:"next,omitempty"`
}

func (d *Daemon) onNamed(ctx context.Context, peer metadata.NodeID, q *namedReq) (namedReply, error) {
	inos, next, err := d.meta.Referenced(ctx, peer, q.After, namedAtOnce)
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
