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
	quiet     = 20 * time.Millisecond // reads are over if none was outstanding for so long
	look      = 10 * time.Millisecond // a pause ends so soon after they are
	mostPause = time.Second
	beside    = 2 // transfers of all makers at a time while this node reads

	measured  = 32 << 10              // bytes; smaller transfers take as long as the processors let them
	slowBy    = 4                     // times the usual time
	slowest   = 50 * time.Millisecond // over the usual time, which processors that are busy account for
	averageOf = 256                   // transfers
)

// pacer makes replicas yield to readers. Beside reads of this node, its makers transfer two pieces at a time, not one for each
// maker: a loader reads most of the time without filling the link, so that one at a time would leave much of it unused.
// Between reads makers do not pause. Readers of other nodes have the whole of a slow path: an owner whose transfers take
// slowBy times as long as usual, and longer by more than slowest, is left alone for a while.
type pacer struct {
	idle   atomic.Pointer[func() time.Duration] // since the last read; nil: nothing reads
	makers atomic.Int64                         // at work

	mu    sync.Mutex
	paths map[metadata.NodeID]*path // guarded by mu; by owner
}

// path is how long transfers of an owner take.
type path struct {
	usual [bits.UintSize + 1]usual // by the bits of the size: small transfers take longer for each byte
	slow  bool                     // the last one was
}

// usual is the mean time of transfers. A slow one counts as slowBy times the mean, so that a path that has become
// slower for good is learnt, after a few hundred transfers.
type usual struct {
	perByte float64
	n       int
}

// observe records that a transfer of n bytes of an owner took so long; in a nil p, nothing.
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

// yield pauses after a transfer that took so long; a nil p does not.
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

// isAway reports whether err says that an owner does not answer. The others may: only the link to it may be cut.
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
