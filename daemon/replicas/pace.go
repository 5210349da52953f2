package replicas

import (
	"context"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	quiet     = 20 * time.Millisecond // reads have paused if none was outstanding for so long
	look      = 10 * time.Millisecond // how often a pause checks for that
	mostPause = time.Second
	beside    = 2 // transfers of all makers at a time while this node reads

	measured  = 32 << 10              // bytes; the time of smaller transfers depends on the processors
	slowBy    = 4                     // slow: this many times the usual time
	slowest   = 50 * time.Millisecond // and this much over the usual time, which busy processors can explain
	averageOf = 256                   // transfers in the mean
)

// pacer makes replicas yield to readers. While this node reads, its makers together transfer two pieces at a time
// instead of one each: a loader reads most of the time without filling the link, so one at a time would waste much of
// it. Between reads makers do not pause. To leave a slow path to the readers of other nodes, transfers from an owner
// are paused for a while if they take slowBy times the usual time and exceed it by more than slowest.
type pacer struct {
	idle   atomic.Pointer[func() time.Duration] // time since the last read; nil: nothing reads
	makers atomic.Int64                         // active makers

	mu    sync.Mutex
	paths map[metadata.NodeID]*path // guarded by mu; by owner
}

// path holds the transfer times of an owner.
type path struct {
	usual [bits.UintSize + 1]usual // by the bit length of the size: small transfers take longer per byte
	slow  bool                     // the last transfer was slow
}

// usual is the mean time of transfers. A slow transfer counts at most as slowBy times the mean, so that the mean adapts
// to a permanently slower path within a few hundred transfers.
type usual struct {
	perByte float64
	n       int
}

// observe records that a transfer of n bytes from an owner took took. A nil p records nothing.
func (p *pacer) observe(owner metadata.NodeID, n int, took time.Duration) {
	if p == nil || n < measured {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.paths == nil {
		p.paths = make(map[metadata.NodeID]*path)
	}
	if p.paths[owner] == nil {
		p.paths[owner] = new(path)
	}
	o, x := p.paths[owner], float64(took)/float64(n)
	u := &o.usual[bits.Len(uint(n))]
	if u.n == 0 {
		u.perByte = x
	}
	o.slow = x > slowBy*u.perByte && took-time.Duration(u.perByte*float64(n)) > slowest
	u.n = min(u.n+1, averageOf)
	u.perByte += (min(x, slowBy*u.perByte) - u.perByte) / float64(u.n)
}

// slow reports whether the last transfer of an owner took much longer than usual.
func (p *pacer) slow(owner metadata.NodeID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.paths[owner]
	return o != nil && o.slow
}

// yield pauses after a transfer that took took. A nil p does not pause.
func (p *pacer) yield(ctx context.Context, took time.Duration) error {
	if p == nil {
		return nil
	}
	idle := p.idle.Load()
	if idle == nil {
		return nil
	}
	for left := min(took*time.Duration(p.makers.Load())/beside-took, mostPause); left > 0 && (*idle)() < quiet; left -= look {
		if err := node.Pause(ctx, min(left, look)); err != nil {
			return err
		}
	}
	return nil
}

// isAway reports whether err says that an owner does not answer. Other owners may answer: only one link may be cut.
func (r *Replicas) isAway(ctx context.Context, s *set, owner metadata.NodeID, err error) bool {
	if ctx.Err() != nil || !node.Unreachable(err) {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !s.away[owner] {
		s.away[owner] = true
		r.cfg.Node.Log().WithError(err).WithField("node", owner).Warn("a node does not answer: its files get replicas later")
	}
	return true
}
