package fsclient

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	spaceFresh = time.Second     // how long an answer is good
	spaceWait  = 2 * time.Second // how long a node is waited for
)

// spaceCache keeps what the nodes said last, so that df and the liveness check
// do not hang on a node that does not answer.
type spaceCache struct {
	turn chan struct{} // room for the one who asks the nodes

	mu    sync.Mutex
	total datapath.Space                     // under mu
	at    time.Time                          // under mu: when total was made
	last  map[metadata.NodeID]datapath.Space // under mu
}

func (s *spaceCache) init() {
	s.turn = make(chan struct{}, 1)
	s.last = make(map[metadata.NodeID]datapath.Space)
}

// Statfs is the space of the whole job: the sum over the nodes that are up. A
// node that does not answer in time counts with what it said last, as full.
func (c *Client) Statfs(ctx context.Context) (datapath.Space, error) {
	s := &c.space
	if t, ok := s.fresh(c.cfg.Now()); ok {
		return t, nil
	}
	if err := take(ctx, s.turn); err != nil {
		return datapath.Space{}, err
	}
	defer func() { <-s.turn }()
	if t, ok := s.fresh(c.cfg.Now()); ok {
		return t, nil
	}
	return c.measure(ctx), nil
}

// StatDataset is the size of the dataset that ino is in, which is full; its
// Objects are what has a name in it.
func (c *Client) StatDataset(ino metadata.Ino) (datapath.Space, error) {
	if c.cfg.Sealed != nil {
		for _, ds := range c.cfg.Sealed.Datasets() {
			if ds.ID == ino.Dataset() {
				return datapath.Space{Capacity: ds.Bytes, Used: ds.Bytes, Objects: ds.Files + ds.Dirs}, nil
			}
		}
	}
	return datapath.Space{}, fmt.Errorf("inode %v: its dataset is not there: %w", ino, syscall.ESTALE)
}

func (s *spaceCache) fresh(now time.Time) (datapath.Space, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.total, !s.at.IsZero() && now.Sub(s.at) < spaceFresh
}

func (c *Client) measure(ctx context.Context) datapath.Space {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), spaceWait)
	defer cancel()
	m := c.cfg.View().Map
	up := m.Up()
	if len(up) == 0 {
		up = m.UpAt(0)
	}
	s := &c.space
	// The errors are those of single nodes, which count with their last answer.
	_ = each(ctx, up, func(ctx context.Context, id metadata.NodeID) error {
		sp, err := c.spaceOf(ctx, id)
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
	s.total, s.at = datapath.Space{}, c.cfg.Now()
	for _, id := range up {
		sp := s.last[id]
		s.total.Capacity += sp.Capacity
		s.total.Used += sp.Used
		s.total.Free += sp.Free
		s.total.Objects += sp.Objects
	}
	return s.total
}

func (c *Client) spaceOf(ctx context.Context, id metadata.NodeID) (datapath.Space, error) {
	d, err := c.dataOf(id)
	if err != nil {
		return datapath.Space{}, err
	}
	return d.Space(ctx)
}
