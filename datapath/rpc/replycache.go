package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// unheard is the most replies of a connection that its peer can have missed:
	// as many as it has calls under way.
	replyCacheSize = 64
	// replyCacheConns is how many connections that have ended are remembered.
	replyCacheConns = 256
)

// replyCache is the last replies on a connection to ops that are not to be done
// twice. While the connection serves it is its writer's, by turn.
type replyCache struct {
	peer metadata.NodeID
	ring [replyCacheSize]*cachedReply
	next int
}

type cachedReply struct {
	tag    uint32
	status syscall.Errno
	body   []byte
}

// add keeps a reply; body may be changed afterwards.
func (r *replyCache) add(tag uint32, status syscall.Errno, body []byte) {
	r.ring[r.next%replyCacheSize] = &cachedReply{tag, status, append([]byte(nil), body...)}
	r.next++
}

// find is what became of the request with that tag.
func (r *replyCache) find(tag uint32) wire.CachedReplyResp {
	for _, g := range r.ring {
		if g != nil && g.tag == tag {
			return wire.CachedReplyResp{Fate: wire.Answered, Status: g.status, Body: g.body}
		}
	}
	return wire.CachedReplyResp{Fate: wire.NotStarted}
}

// past is the replies on connections that have ended, the newest ones.
type closedReplies struct {
	mu    sync.Mutex
	conns map[wire.Nonce]*replyCache  // guarded by mu
	order [replyCacheConns]wire.Nonce // guarded by mu
	next  int                         // guarded by mu
}

func (p *closedReplies) add(n wire.Nonce, r *replyCache) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		p.conns = make(map[wire.Nonce]*replyCache)
	}
	delete(p.conns, p.order[p.next%replyCacheConns])
	p.order[p.next%replyCacheConns] = n
	p.conns[n] = r
	p.next++
}

// recollect is what became of a request of peer's on a connection that has ended.
func (p *closedReplies) find(peer metadata.NodeID, q wire.CachedReplyReq) wire.CachedReplyResp {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.conns[q.Conn]; r != nil && r.peer == peer {
		return r.find(q.Tag)
	}
	return wire.CachedReplyResp{}
}

// recollect answers OpCachedReply, on the reading goroutine.
func (c *serverConn) cachedReply(h wire.Header) error {
	if h.Data > 0 || h.Body > smallBuffer {
		return fmt.Errorf("recollect request of %d bytes: %w", h.Body+h.Data, wire.ErrTooLarge)
	}
	b := make([]byte, h.Body)
	if err := c.r.body(&h, b); err != nil {
		return err
	}
	var q wire.CachedReplyReq
	if err := q.Parse(b); err != nil {
		return err
	}
	c.w.lock()
	defer c.w.unlock()
	c.w.arm(c.s.cfg.FrameTimeout)
	body := c.s.closedReplies.find(c.peer, q).Append(nil)
	return c.w.send(wire.Header{Op: h.Op, Tag: h.Tag, Epoch: c.s.cfg.Epoch()}, body)
}

// lostCall is the cause of a call that was lost with its connection: the name
// by which the peer knows it.
type lostCall struct {
	peer  metadata.NodeID
	conn  wire.Nonce
	tag   uint32
	cause error
}

func (e *lostCall) Error() string { return e.cause.Error() }

// lostIn is the call that err says was lost; nil if it says something else.
func lostIn(err error) *lostCall {
	var e *callError
	if !errors.As(err, &e) {
		return nil
	}
	c, ok := e.cause.(*connectError)
	if !ok {
		return nil
	}
	l, _ := c.cause.(*lostCall)
	return l
}

// isReplyLookup reports whether err is of a question for a lost call.
func isReplyLookup(err error) bool {
	var e *callError
	return errors.As(err, &e) && e.op == wire.OpCachedReply
}

// errForgotten says that it cannot be known whether a call took effect.
var errForgotten = errors.New("the node was started again before it answered, and does not know what became of the call: look whether it took effect")

// fetchReply has the peer say what became of a call that was lost.
func (p *Retrier) fetchReply(ctx context.Context, what *lostCall) (r wire.CachedReplyResp, err error) {
	ask := Call{Op: wire.OpCachedReply, Body: wire.CachedReplyReq{Conn: what.conn, Tag: what.tag}.Append(nil)}
	if err := p.caller.Do(ctx, &ask); err != nil {
		return r, err
	}
	if err := r.Parse(ask.Reply); err != nil {
		return r, fmt.Errorf("%v: %w", err, syscall.EPROTO)
	}
	return r, nil
}

// outcome gives c the reply that its peer remembers, if it does.
func outcome(c *Call, what *lostCall, r wire.CachedReplyResp) error {
	if r.Fate == wire.Unknown {
		return &callError{op: c.Op, peer: what.peer, errno: syscall.ECONNRESET, cause: errForgotten}
	}
	if c.Reply = r.Body; r.Status != 0 {
		return &callError{op: c.Op, peer: what.peer, errno: r.Status}
	}
	return nil
}
