package cache

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// Stubs keeps one stub of each node.
type Stubs[S any] struct {
	dial func(metadata.NodeID) S

	mu  sync.RWMutex
	all map[metadata.NodeID]S // under mu
}

// NewStubs returns Stubs, each of which dial makes at its first use.
func NewStubs[S any](dial func(metadata.NodeID) S) *Stubs[S] {
	return &Stubs[S]{dial: dial, all: make(map[metadata.NodeID]S)}
}

// Put sets the stub of a node.
func (c *Stubs[S]) Put(id metadata.NodeID, s S) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[id] = s
}

// Get returns the stub of a node.
func (c *Stubs[S]) Get(id metadata.NodeID) S {
	c.mu.RLock()
	s, ok := c.all[id]
	c.mu.RUnlock()
	if ok {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s, ok = c.all[id]; !ok {
		s = c.dial(id)
		c.all[id] = s
	}
	return s
}
