package cache

import (
	"context"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	spaceFresh = time.Second     // how long a sum is valid
	spaceWait  = 2 * time.Second // how long Total waits for the nodes
)

// Nodes is the interface through which a Space asks the nodes.
type Nodes interface {
	// Up returns the nodes that have space.
	Up() []metadata.NodeID
	// Space returns the space of one node.
	Space(ctx context.Context, id metadata.NodeID) (datapath.Space, error)
}

// Space is the space of the job: the sum over its nodes. It keeps each node's last answer, so that df does not hang on
// a node that does not answer.
type Space struct {
	nodes  Nodes
	now    func() time.Time
	asking wait.Mutex // held by the call that asks the nodes

	mu    sync.Mutex
	total datapath.Space                     // under mu
	at    time.Time                          // under mu: when total was computed
	last  map[metadata.NodeID]datapath.Space // under mu
}

// NewSpace returns the space of the job.
func NewSpace(nodes Nodes, now func() time.Time) *Space {
	return &Space{nodes: nodes, now: now, asking: wait.NewMutex(), last: make(map[metadata.NodeID]datapath.Space)}
}

// Total returns the sum over the nodes that are up. A node that does not answer in time counts with its last answer, as
// full.
func (s *Space) Total(ctx context.Context) (datapath.Space, error) {
	if t, ok := s.fresh(); ok {
		return t, nil
	}
	if err := s.asking.Lock(ctx); err != nil {
		return datapath.Space{}, err
	}
	defer s.asking.Unlock()
	if t, ok := s.fresh(); ok {
		return t, nil
	}
	return s.ask(ctx), nil
}

func (s *Space) fresh() (datapath.Space, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total, !s.at.IsZero() && s.now().Sub(s.at) < spaceFresh
}

// ask continues when its caller is interrupted, because other callers wait for the answer.
func (s *Space) ask(ctx context.Context) datapath.Space {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spaceWait)
	defer cancel()
	up := s.nodes.Up()
	// A node that fails counts with its last answer.
	_ = wait.Each(ctx, up, func(ctx context.Context, id metadata.NodeID) error {
		sp, err := s.nodes.Space(ctx, id)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			sp = s.last[id]
			sp.Free = 0
		}
		s.last[id] = sp
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.total, s.at = datapath.Space{}, s.now()
	for _, id := range up {
		sp := s.last[id]
		s.total.Capacity += sp.Capacity
		s.total.Used += sp.Used
		s.total.Free += sp.Free
		s.total.Objects += sp.Objects
	}
	return s.total
}
