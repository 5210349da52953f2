package rpc

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// replyCacheSize is how many replies a connection caches: its peer can have missed as many as it has calls
	// outstanding.
	replyCacheSize = 64
	// replyCacheConns is how many closed connections keep their cached replies.
	replyCacheConns = 256
)

// replyCache holds the latest replies on a connection to ops that must not run twice. While the connection is served
// the write token guards it.
type replyCache struct {
	peer metadata.NodeID
	ring [replyCacheSize]cachedReply
	next int
}

type cachedReply struct {
	set    bool
	tag    uint32
	status syscall.Errno
	body   []byte
}

// add caches a reply; it copies body.
func (r *replyCache) add(tag uint32, status syscall.Errno, body []byte) {
	slot := &r.ring[r.next%replyCacheSize]
	*slot = cachedReply{true, tag, status, append(slot.body[:0], body...)}
	r.next++
}

// find returns the fate of the request with that tag.
func (r *replyCache) find(tag uint32) wire.CachedReplyResp {
	for i := range r.ring {
		if g := &r.ring[i]; g.set && g.tag == tag {
			return wire.CachedReplyResp{Fate: wire.Answered, Status: g.status, Body: g.body}
		}
	}
	return wire.CachedReplyResp{Fate: wire.NotStarted}
}

// closedReplies holds the reply caches of the connections that were closed last.
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

// find returns the fate of a request of peer on a closed connection.
func (p *closedReplies) find(peer metadata.NodeID, q wire.CachedReplyReq) wire.CachedReplyResp {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.conns[q.Conn]; r != nil && r.peer == peer {
		return r.find(q.Tag)
	}
	return wire.CachedReplyResp{}
}

// cachedReply answers OpCachedReply, on the reader goroutine.
func (c *serverConn) cachedReply(h wire.Header) error {
	var q wire.CachedReplyReq
	if err := c.readSmall(h, smallBuffer, &q); err != nil {
		return err
	}
	r := c.s.closedReplies.find(c.peer, q)
	return c.answer(h, 0, &r)
}

// lostCall is the cause of a call that was lost with its connection. It identifies the call to the peer.
type lostCall struct {
	peer  metadata.NodeID
	conn  wire.Nonce
	tag   uint32
	cause error
}

func (e *lostCall) Error() string { return e.cause.Error() }

// lostIn returns the lost call in err, if any.
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

// isReplyLookup reports whether err comes from a lookup in the reply cache.
func isReplyLookup(err error) bool {
	var e *callError
	return errors.As(err, &e) && e.op == wire.OpCachedReply
}

// errForgotten reports that the effect of a call is unknown.
var errForgotten = errors.New("the node restarted before it replied: check whether the operation took effect")

// fetchReply asks the peer for the fate of a lost call.
func (p *Retrier) fetchReply(ctx context.Context, what *lostCall) (r wire.CachedReplyResp, err error) {
	ask := Call{Op: wire.OpCachedReply, Body: &wire.CachedReplyReq{Conn: what.conn, Tag: what.tag}, Reply: &r}
	err = p.caller.Do(ctx, &ask)
	return r, err
}

// outcome completes c with the cached reply.
func outcome(c *Call, what *lostCall, r wire.CachedReplyResp) error {
	if r.Fate == wire.Unknown {
		return &callError{op: c.Op, peer: what.peer, errno: syscall.ECONNRESET, cause: errForgotten}
	}
	if err := c.accept(r.Status, r.Body); err != nil {
		return &callError{op: c.Op, peer: what.peer, errno: syscall.EBADMSG, cause: err}
	}
	if r.Status != 0 {
		return &callError{op: c.Op, peer: what.peer, errno: r.Status}
	}
	return nil
}
