package rebuild

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
)

// Guard refuses reads and writes of objects with a copy elsewhere (metadata.Ino.Copied) while the other copy may be
// newer, or may miss a write (package copies). The client then calls the other node, or retries.
type Guard struct {
	Lease copies.Lease
	fence copies.Fence
	view  func() cluster.View
	self  metadata.NodeID
	// ranges: a write holds the lock of its object shared, the copy of a range holds it exclusively. Moved objects have
	// separate locks, so that two nodes that copy two parts of a file to each other do not wait for each other.
	ranges [2][32]sync.RWMutex

	mu      sync.Mutex
	intakes map[metadata.Ino]*intake // guarded by mu; copies being made here
}

// NewGuard returns the guard of the node self.
func NewGuard(self metadata.NodeID, view func() cluster.View) *Guard {
	return &Guard{self: self, view: view, intakes: make(map[metadata.Ino]*intake)}
}

// serves returns EHOSTDOWN if a reader with a map of epoch e may not read a copy here.
func (g *Guard) serves(e metadata.Epoch) error {
	if !g.Lease.Valid(time.Now()) {
		return fmt.Errorf("copies are not served: no leader has answered this node lately: %w", syscall.EHOSTDOWN)
	}
	if n, _ := g.view().Map.Node(g.self); !copies.Serves(n, e) {
		return fmt.Errorf("copies are not served to a node with the map of epoch %d: %s is %v since %d: %w", e, n.Host, n.State, n.Since, syscall.EHOSTDOWN)
	}
	return nil
}

// Read calls fn, which reads an object for a reader with a map of epoch e. It checks before and after.
func (g *Guard) Read(object metadata.Ino, e metadata.Epoch, fn func() error) error {
	if !object.Copied() {
		return fn()
	}
	if err := g.serves(e); err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	return g.serves(e)
}

// Write calls fn, which changes an object for a writer with a map of epoch e, if the writer is admitted.
func (g *Guard) Write(object metadata.Ino, e metadata.Epoch, fn func() error) error {
	if !object.Copied() {
		return fn()
	}
	mu := g.mutex(object)
	mu.RLock()
	defer mu.RUnlock()
	if !g.fence.Admits(e, g.view().Map, &g.Lease) {
		return fmt.Errorf("copies are not written by a node with the map of epoch %d, or before a leader has answered: %w", e, syscall.EHOSTDOWN)
	}
	return fn()
}

func (g *Guard) mutex(object metadata.Ino) *sync.RWMutex {
	kind := 0
	if _, moved := object.MovedPart(); moved {
		kind = 1
	}
	return &g.ranges[kind][object.Counter()%uint64(len(g.ranges[kind]))]
}

// raise refuses writers with maps older than e from now on. When it returns, their writes have ended.
func (g *Guard) raise(e metadata.Epoch) {
	g.fence.Raise(e)
	for kind := range g.ranges {
		for i := range g.ranges[kind] {
			drain(&g.ranges[kind][i])
		}
	}
}

// drain waits until all current readers of mu have released it.
func drain(mu *sync.RWMutex) {
	mu.Lock()
	defer mu.Unlock()
}

// alone calls fn while no write of the object is in progress.
func (g *Guard) alone(object metadata.Ino, fn func() error) error {
	mu := g.mutex(object)
	mu.Lock()
	defer mu.Unlock()
	if !g.Lease.Valid(time.Now()) {
		return fmt.Errorf("no leader has answered lately: %w", syscall.EHOSTDOWN)
	}
	return fn()
}

// Reads adds the checks of Read to h, which reads the object whose number comes first in the request.
func (g *Guard) Reads(h rpc.Handler) rpc.Handler { return guarded(g.Read, h) }

// Writes adds the check of Write to h, which changes the object whose number comes first in the request.
func (g *Guard) Writes(h rpc.Handler) rpc.Handler { return guarded(g.Write, h) }

func guarded(check func(metadata.Ino, metadata.Epoch, func() error) error, h rpc.Handler) rpc.Handler {
	return func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
		return check(wire.InoOf(r.Body), r.Epoch, func() error { return h(ctx, r, resp) })
	}
}
