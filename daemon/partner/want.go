package partner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Want has all homes keep copies from now on, and waits until they do.
func (s *Sender) Want(ctx context.Context) error {
	v := s.node.View()
	if v.Copied && allHave(v.Map) {
		return nil
	}
	if !v.Copied {
		if _, err := s.node.Propose(ctx, raftstore.Command{Kind: raftstore.KindCopied}); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, wantTime)
	defer cancel()
	if s.node.Until(ctx, func(v cluster.View) bool { return v.Copied && allHave(v.Map) }) != nil {
		return fmt.Errorf("some nodes have no copy of their names on a partner yet: try again: %w", syscall.EAGAIN)
	}
	return nil
}

// wantTime is how long Want waits.
const wantTime = 10 * time.Second

// allHave reports whether each home that can have a partner has one.
func allHave(m cluster.Map) bool {
	for _, n := range m.Nodes {
		if n.Second().Since > 0 {
			continue
		}
		at, _ := m.HomeAt(n.ID)
		x, _ := m.Node(at)
		if _, can := m.NextPartner(n.ID); can && x.State == cluster.Up {
			return false
		}
	}
	return true
}

// InStep reports whether the records here include each change of an earlier daemon that the partner has. A change that
// the partner had when that daemon ended may be missing here until all changes were sent again.
func (s *Sender) InStep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.home.InStep()
}

// HasRoom reports whether the partner's disk has room for more records, as last reported. It tries again every second.
func (s *Sender) HasRoom() bool {
	at := s.full.Load()
	return at == nil || time.Since(*at) > time.Second
}

// probe checks whether the partner still has its copy: a partner that restarted with an empty disk does not.
func (s *Sender) probe(ctx context.Context) {
	s.mu.Lock()
	m, ok := s.home.Probe()
	s.mu.Unlock()
	if ok && s.send(ctx, m, nil) != nil {
		wake(s.kick) // the stream has ended: begin another one
	}
}

// avoided returns the nodes that recently had no room for the copy. The caller holds mu.
func (s *Sender) avoided() (ids []metadata.NodeID) {
	for id, at := range s.avoid {
		if time.Since(at) < s.patience {
			ids = append(ids, id)
		}
	}
	return ids
}

// declined ends a stream to a node without room, unless the home is bound to it. If the node has stored the message,
// another node that has not declined must be left: otherwise long copies would move from one full node to the next.
func (s *Sender) declined(to cluster.Partner, full, refused bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !full || s.home.Bound().Since > 0 {
		return false
	}
	_, other := s.node.View().Map.NextPartner(s.id, slices.AppendSeq([]metadata.NodeID{to.Node}, maps.Keys(s.avoid))...)
	if !refused && !other {
		return false
	}
	s.avoid[to.Node] = time.Now()
	s.home.Abandon()
	s.turn.Broadcast()
	return true
}

// Leave lets changes continue without the partner, because the job has ended on this node and the partner may be down.
func (s *Sender) Leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = true
	s.home.Release()
	s.turn.Broadcast()
}
