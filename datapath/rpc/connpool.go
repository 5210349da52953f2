package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// connPool holds the connections to one node for one purpose.
type connPool struct {
	p           *Peers
	id          metadata.NodeID
	purpose     wire.Purpose
	max         int // connections
	disconnects atomic.Uint64

	mu      sync.Mutex
	conns   []*clientConn // guarded by mu
	dialing *dial         // guarded by mu: at most one at a time
	backoff retry.Backoff // guarded by mu: between failed attempts
	retryAt time.Time     // guarded by mu: until then calls fail fast
	lastErr error         // guarded by mu: why the last attempt failed
	lost    []wire.Nonce  // guarded by mu: connections to drain before the next call
}

func newConnPool(p *Peers, id metadata.NodeID, purpose wire.Purpose, most int) *connPool {
	return &connPool{p: p, id: id, purpose: purpose, max: most, backoff: retry.New(p.cfg.Backoff, p.cfg.MaxBackoff, 0.25)}
}

// dial is an attempt to connect, shared by all calls that wait for a connection. The attempt itself or a disconnect
// ends it, by removing it from its pool under mu.
type dial struct {
	ctx    context.Context // ends with a disconnect
	cancel context.CancelFunc
	done   chan struct{} // closed when the attempt has ended
	err    error         // set before done
}

// conn returns the least loaded connection. It makes one if there is none, and, without
// waiting for it, one more if all are in use.
func (l *connPool) conn(ctx context.Context, w *waiter) (*clientConn, error) {
	for {
		c, d, err := l.pick(w.disconnects)
		if c != nil || err != nil {
			return c, err
		}
		select {
		case <-d.done:
			if d.err != nil {
				return nil, d.err
			}
		case <-ctx.Done():
			return nil, ctxErrno(ctx)
		case <-w.timer.C:
			return nil, syscall.ETIMEDOUT
		}
	}
}

// pick returns a connection, a dial to wait for, or an error, such as that of a call that began before the last
// disconnect.
func (l *connPool) pick(cuts uint64) (*clientConn, *dial, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cuts != l.disconnects.Load() {
		return nil, nil, errCutOff
	}
	best := l.best()
	if best != nil && (len(best.inFlight) == 0 || len(l.conns) >= l.max) {
		return best, nil, nil
	}
	if l.dialing == nil && time.Now().Before(l.retryAt) {
		if best != nil {
			return best, nil, nil
		}
		l.p.stats.failFast.Add(1)
		return nil, nil, l.lastErr
	}
	if l.dialing == nil && !l.start() {
		return nil, nil, syscall.ESHUTDOWN
	}
	return best, l.dialing, nil
}

// best returns the least loaded connection; nil if there is none, or lost ones must be
// drained first. Called with mu.
func (l *connPool) best() *clientConn {
	if len(l.lost) > 0 {
		return nil
	}
	var best *clientConn
	for _, c := range l.conns {
		if best == nil || len(c.inFlight) < len(best.inFlight) {
			best = c
		}
	}
	return best
}

// start starts an attempt. Called with mu; false after Close.
func (l *connPool) start() bool {
	if !l.p.begin() {
		return false
	}
	d := &dial{done: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(l.p.ctx)
	l.dialing = d
	go func() {
		defer l.p.wg.Done()
		defer d.cancel()
		l.dial(d)
	}()
	return true
}

// dial makes the connection and then runs its reader.
func (l *connPool) dial(d *dial) {
	conn, nonce, err := l.p.connect(d.ctx, l.id, l.purpose)
	if err == nil {
		err = l.drain(d, conn)
	}
	if c := l.dialed(d, conn, nonce, err); c != nil {
		c.serve()
	}
}

// dialed ends d, unless a disconnect already has.
func (l *connPool) dialed(d *dial, conn net.Conn, nonce wire.Nonce, err error) *clientConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	cut := l.dialing != d
	if err == nil && (cut || l.p.ctx.Err() != nil) {
		_ = conn.Close()
		err = syscall.ESHUTDOWN
	}
	if cut {
		return nil
	}
	l.dialing = nil
	defer close(d.done)
	if err != nil {
		d.err = err
		l.failed(err)
		return nil
	}
	c := newClientConn(l, conn, nonce)
	l.conns = append(l.conns, c)
	l.p.stats.conns.Add(1)
	return c
}

// failed starts or lengthens the back-off. Called with mu.
func (l *connPool) failed(err error) {
	l.lastErr = err
	l.retryAt = time.Now().Add(l.backoff.Next())
}

// answered ends the back-off after the first reply; a handshake alone does not.
func (l *connPool) answered() {
	l.mu.Lock()
	l.retryAt = time.Time{}
	l.backoff.Reset()
	l.mu.Unlock()
}

// drop removes an ended connection. A connection without any reply counts as a failed attempt. The peer may still be
// running the calls that were outstanding.
func (l *connPool) drop(c *clientConn, err error, answered, underWay bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if underWay && l.purpose.Drains() && l.p.ctx.Err() == nil {
		l.lost = append(l.lost, c.nonce)
	}
	if i := slices.Index(l.conns, c); i >= 0 {
		l.conns = slices.Delete(l.conns, i, i+1)
		l.p.stats.conns.Add(-1)
	}
	if !answered && !errors.Is(err, errIdle) && l.p.ctx.Err() == nil {
		l.failed(&connectError{syscall.EHOSTDOWN, fmt.Errorf("connection closed before its first reply: %w", err)})
	}
}

// disconnect closes all connections, including one that is being dialled, and fails the calls that wait for it.
func (l *connPool) disconnect(why error) {
	l.mu.Lock()
	l.disconnects.Add(1)
	if d := l.dialing; d != nil {
		l.dialing = nil
		d.err = &connectError{syscall.EHOSTDOWN, why}
		close(d.done)
		d.cancel()
	}
	conns := append([]*clientConn(nil), l.conns...)
	l.mu.Unlock()
	for _, c := range conns {
		c.cut(why)
	}
}

// connect tries a node's addresses in order until a handshake succeeds. Its
// errors wrap an errno.
func (p *Peers) connect(ctx context.Context, id metadata.NodeID, purpose wire.Purpose) (net.Conn, wire.Nonce, error) {
	nonce := newNonce()
	p.stats.dials.Add(1)
	addrs := p.cfg.Addrs(id)
	if len(addrs) == 0 {
		p.stats.dialsFailed.Add(1)
		return nil, nonce, &connectError{syscall.EHOSTUNREACH, errors.New("no address known")}
	}
	var errs []error
	for _, addr := range addrs {
		conn, err := p.try(ctx, addr, id, purpose, nonce)
		if err == nil {
			return conn, nonce, nil
		}
		if ctx.Err() != nil {
			p.stats.dialsFailed.Add(1)
			return nil, nonce, &connectError{ctxErrno(ctx), fmt.Errorf("%s: %w", addr, err)}
		}
		errs = append(errs, fmt.Errorf("%s: %w", addr, err))
	}
	p.stats.dialsFailed.Add(1)
	err := errors.Join(errs...)
	p.cfg.Log.WithField("peer", id).WithError(err).Debug("peer not reached; retry after back-off")
	return nil, nonce, &connectError{connectErrno(err), err}
}

func connectErrno(err error) syscall.Errno {
	if errors.Is(err, syscall.EHOSTUNREACH) || errors.Is(err, syscall.ENETUNREACH) {
		return syscall.EHOSTUNREACH
	}
	return syscall.EHOSTDOWN
}

// try dials one address and does the handshake.
func (p *Peers) try(ctx context.Context, addr string, id metadata.NodeID, purpose wire.Purpose, nonce wire.Nonce) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	conn, err := p.cfg.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	keepAlive(conn)
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline) // the next read of a dead connection fails
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	protected, err := p.id.dialHandshake(conn, id, purpose, nonce)
	if !stop() && err == nil {
		err = os.ErrDeadlineExceeded
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return protected, nil
}
