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
	unheard = 64
	// pastConns is how many connections that have ended are remembered.
	pastConns = 256
)

// replies is the last replies on a connection to ops that are not to be done
// twice. While the connection serves it is its writer's, by turn.
type replies struct {
	peer metadata.NodeID
	ring [unheard]*givenReply
	next int
}

type givenReply struct {
	tag    uint32
	status syscall.Errno
	body   []byte
}

// remember keeps a reply; body may be changed afterwards.
func (r *replies) remember(tag uint32, status syscall.Errno, body []byte) {
	r.ring[r.next%unheard] = &givenReply{tag, status, append([]byte(nil), body...)}
	r.next++
}

// to is what became of the request with that tag.
func (r *replies) to(tag uint32) wire.RecollectResp {
	for _, g := range r.ring {
		if g != nil && g.tag == tag {
			return wire.RecollectResp{Fate: wire.Answered, Status: g.status, Body: g.body}
		}
	}
	return wire.RecollectResp{Fate: wire.NotBegun}
}

// past is the replies on connections that have ended, the newest ones.
type past struct {
	mu    sync.Mutex
	conns map[wire.Nonce]*replies // guarded by mu
	order [pastConns]wire.Nonce   // guarded by mu
	next  int                     // guarded by mu
}

func (p *past) add(n wire.Nonce, r *replies) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		p.conns = make(map[wire.Nonce]*replies)
	}
	delete(p.conns, p.order[p.next%pastConns])
	p.order[p.next%pastConns] = n
	p.conns[n] = r
	p.next++
}

// recollect is what became of a request of peer's on a connection that has ended.
func (p *past) recollect(peer metadata.NodeID, q wire.RecollectReq) wire.RecollectResp {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.conns[q.Conn]; r != nil && r.peer == peer {
		return r.to(q.Tag)
	}
	return wire.RecollectResp{}
}

// recollect answers OpRecollect, on the reading goroutine.
func (c *serverConn) recollect(h wire.Header) error {
	if h.Data > 0 || h.Body > smallBuffer {
		return fmt.Errorf("recollect request of %d bytes: %w", h.Body+h.Data, wire.ErrTooLarge)
	}
	b := make([]byte, h.Body)
	if err := c.r.body(&h, b); err != nil {
		return err
	}
	var q wire.RecollectReq
	if err := q.Parse(b); err != nil {
		return err
	}
	c.w.lock()
	defer c.w.unlock()
	c.w.arm(c.s.cfg.FrameTimeout)
	body := c.s.past.recollect(c.peer, q).Append(nil)
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

// isQuestion reports whether err is of a question for a lost call.
func isQuestion(err error) bool {
	var e *callError
	return errors.As(err, &e) && e.op == wire.OpRecollect
}

// errForgotten says that it cannot be known whether a call took effect.
var errForgotten = errors.New("the node was started again before it answered, and does not know what became of the call: look whether it took effect")

// recollect has the peer say what became of a call that was lost.
func (p *Patient) recollect(ctx context.Context, what *lostCall) (r wire.RecollectResp, err error) {
	ask := Call{Op: wire.OpRecollect, Body: wire.RecollectReq{Conn: what.conn, Tag: what.tag}.Append(nil)}
	if err := p.caller.Do(ctx, &ask); err != nil {
		return r, err
	}
	if err := r.Parse(ask.Reply); err != nil {
		return r, fmt.Errorf("%v: %w", err, syscall.EPROTO)
	}
	return r, nil
}

// outcome gives c the reply that its peer remembers, if it does.
func outcome(c *Call, what *lostCall, r wire.RecollectResp) error {
	if r.Fate == wire.Unknown {
		return &callError{op: c.Op, peer: what.peer, errno: syscall.ECONNRESET, cause: errForgotten}
	}
	if c.Reply = r.Body; r.Status != 0 {
		return &callError{op: c.Op, peer: what.peer, errno: r.Status}
	}
	return nil
}
