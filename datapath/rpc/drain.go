package rpc

import (
	"context"
	"fmt"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/wire"
)

// drain makes the peer finish the requests of lost connections. It uses the new connection of d, which carries no other
// request before the drain has succeeded.
func (l *connPool) drain(d *dial, conn net.Conn) error {
	l.mu.Lock()
	lost := slices.Clone(l.lost[:min(len(l.lost), wire.MaxDrained)])
	l.mu.Unlock()
	if len(lost) == 0 {
		return nil
	}
	if err := l.askToDrain(d.ctx, conn, lost); err != nil {
		_ = conn.Close()
		return &connectError{syscall.EHOSTDOWN, fmt.Errorf("lost connections to %v are not drained: %w", conn.RemoteAddr(), err)}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dialing == d { // else a disconnect ended it, and another attempt may drain the same
		l.lost = slices.Delete(l.lost, 0, len(lost)) // others may have been appended
	}
	return nil
}

func (l *connPool) askToDrain(ctx context.Context, conn net.Conn, lost []wire.Nonce) error {
	cfg := &l.p.cfg
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(time.Now().Add(cfg.Timeout)) // the next read of a dead connection fails
	w := newFrameWriter(conn, cfg.FrameTimeout, &l.p.stats.bytesOut)
	h := wire.Header{Op: wire.OpDrain, Epoch: cfg.Epoch(), Wait: uint32(cfg.Timeout.Milliseconds())}
	if err := w.send(h, wire.Append(nil, &wire.DrainReq{Conns: lost})); err != nil {
		return err
	}
	r := newFrameReader(conn, wire.HeaderSize, cfg.Timeout, cfg.FrameTimeout, &l.p.stats.bytesIn)
	if err := r.next(&h); err != nil {
		return err
	}
	switch {
	case h.Op != wire.OpDrain || h.Tag != 0 || h.Body+h.Data != 0:
		return errTag
	case h.Status != 0:
		return h.Status
	}
	return conn.SetDeadline(time.Time{})
}

// register starts to serve c; false if the peer has drained it already.
func (s *Server) register(n wire.Nonce, c *serverConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drained.has(n) {
		return false
	}
	s.serving[n] = c
	return true
}

// unregister records that no request of c runs any more.
func (s *Server) unregister(n wire.Nonce, c *serverConn) {
	if c.room == nil { // replies on bulk connections are not cached
		s.closedReplies.add(n, &c.replies)
	}
	s.mu.Lock()
	delete(s.serving, n)
	s.mu.Unlock()
	close(c.ended)
}

// drain replies when no request of the lost connections runs any more. It runs on the reader goroutine: the peer sends
// nothing else meanwhile.
func (c *serverConn) drain(h wire.Header) error {
	var q wire.DrainReq
	if err := c.readSmall(h, wire.MaxDrainReq, &q); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Duration(h.Wait)*time.Millisecond)
	defer cancel()
	status := syscall.Errno(0)
	for _, n := range q.Conns {
		if !c.s.endConn(ctx, n, c) {
			status = syscall.ETIMEDOUT
		}
	}
	return c.answer(h, status, nil)
}

// endConn closes connection n of by's peer, which may not be served yet, and reports whether all of its requests have
// ended.
func (s *Server) endConn(ctx context.Context, n wire.Nonce, by *serverConn) bool {
	s.mu.Lock()
	old := s.serving[n]
	if old == nil {
		s.drained.add(n)
	}
	s.mu.Unlock()
	if old == nil || old == by || old.peer != by.peer {
		return true // there is none, or it belongs to another peer
	}
	old.cut()
	select {
	case <-old.ended:
		return true
	case <-ctx.Done():
		return false
	}
}
