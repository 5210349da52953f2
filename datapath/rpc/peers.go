package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/valyala/bytebufferpool"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// PeersConfig configures Peers. Key, Job and Addrs are required; zero values of the
// rest are the defaults.
type PeersConfig struct {
	Key  Key
	Job  string          // must equal that of the servers
	Self metadata.NodeID // or NoNode
	// Protect is the protection of connections; it must equal that of the servers.
	Protect secure.Mode

	Dial Dialer // TCP
	// Addrs returns the candidate addresses of a node. They are tried in order until
	// a handshake with that node succeeds.
	Addrs func(metadata.NodeID) []string

	// Epoch is the epoch of this node's map, sent with every request.
	Epoch func() metadata.Epoch
	// NewerEpoch is called when a peer's map is newer, once for each epoch and
	// connection. It must not block.
	NewerEpoch func(peer metadata.NodeID, e metadata.Epoch)

	Conns   int           // connections to a node for bulk data; 4. The other purposes have one
	Timeout time.Duration // of a call whose context has no earlier deadline; 30 s

	MaxInFlight      int           // calls outstanding on one connection, more wait; 64
	HandshakeTimeout time.Duration // to dial one address and shake hands; 5 s
	IdleTimeout      time.Duration // after which an unused connection is closed; 2 min
	FrameTimeout     time.Duration // from a frame's first byte to its last, either way; 15 s
	Backoff          time.Duration // after the first failure to connect, doubled with each; 50 ms
	MaxBackoff       time.Duration // 2 s

	Log *logrus.Entry
}

func (c *PeersConfig) validate() error {
	var errs []error
	if c.Key == (Key{}) {
		errs = append(errs, errors.New("no key"))
	}
	if c.Job == "" {
		errs = append(errs, errors.New("no job"))
	}
	if c.Addrs == nil {
		errs = append(errs, errors.New("no addresses"))
	}
	if c.Conns < 0 || c.MaxInFlight < 0 {
		errs = append(errs, errors.New("negative bound"))
	}
	if c.MaxInFlight > replyCacheSize {
		errs = append(errs, fmt.Errorf("%d calls on a connection: a server caches the replies of %d", c.MaxInFlight, replyCacheSize))
	}
	for _, d := range []time.Duration{c.Timeout, c.HandshakeTimeout, c.IdleTimeout, c.FrameTimeout, c.Backoff, c.MaxBackoff} {
		if d < 0 {
			errs = append(errs, errors.New("negative timeout"))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("rpc peers: %w", errors.Join(errs...))
	}
	return nil
}

// bulkConns is the number of connections to a node for bulk data. More than four were
// not faster for 16 readers of 110 KiB.
const bulkConns = 4

func (c *PeersConfig) setDefaults() {
	setDefault(&c.Conns, bulkConns)
	setDefault(&c.Timeout, 30*time.Second)
	setDefault(&c.MaxInFlight, replyCacheSize)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.IdleTimeout, 2*time.Minute)
	setDefault(&c.FrameTimeout, 15*time.Second)
	setDefault(&c.Backoff, 50*time.Millisecond)
	setDefault(&c.MaxBackoff, 2*time.Second)
	if c.Dial == nil {
		var d net.Dialer
		c.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if c.Epoch == nil {
		c.Epoch = func() metadata.Epoch { return 0 }
	}
	if c.NewerEpoch == nil {
		c.NewerEpoch = func(metadata.NodeID, metadata.Epoch) {}
	}
	c.Log = cmp.Or(c.Log, quietLog())
}

// Peers holds the connections to the other nodes of the job.
type Peers struct {
	cfg    PeersConfig // without the key
	id     identity
	stats  peersStats
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // dials and readers

	mu     sync.Mutex
	closed bool                      // guarded by mu
	nodes  map[metadata.NodeID]*peer // guarded by mu
}

// NewPeers returns a Peers without connections.
func NewPeers(cfg PeersConfig) (*Peers, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	p := &Peers{id: newIdentity(cfg.Key, cfg.Job, cfg.Self, cfg.Protect), nodes: make(map[metadata.NodeID]*peer)}
	cfg.Key = Key{}
	p.cfg = cfg
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

// To returns the Caller for a node. It makes no connection.
func (p *Peers) To(id metadata.NodeID) Caller {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.nodes[id]
	if n == nil {
		n = &peer{p: p, id: id}
		n.meta = newConnPool(p, id, wire.PurposeMeta, 1)
		n.bulk = newConnPool(p, id, wire.PurposeBulk, p.cfg.Conns)
		n.homes = newConnPool(p, id, wire.PurposePeer, 1)
		n.mirror = newConnPool(p, id, wire.PurposeMirror, 1)
		p.nodes[id] = n
	}
	return n
}

// Stream makes an authenticated connection to a node for another protocol. The caller
// closes it.
func (p *Peers) Stream(ctx context.Context, id metadata.NodeID) (net.Conn, error) {
	if !p.begin() {
		return nil, fmt.Errorf("stream to node %d: %w", id, syscall.ESHUTDOWN)
	}
	defer p.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	conn, _, err := p.connect(ctx, id, wire.PurposeStream)
	if err != nil {
		return nil, fmt.Errorf("stream to node %d: %w", id, err)
	}
	return conn, nil
}

// Disconnect closes the connections to a node that was given up, and ends the calls
// that wait for one, so that they do not run into their deadlines. Later calls
// connect again.
func (p *Peers) Disconnect(id metadata.NodeID) {
	p.mu.Lock()
	n := p.nodes[id]
	p.mu.Unlock()
	if n != nil {
		n.disconnect(errGivenUp)
	}
}

// Stats returns the counters.
func (p *Peers) Stats() PeersStats { return p.stats.snapshot() }

// Close ends all calls, closes all connections and waits for their goroutines.
func (p *Peers) Close() {
	p.cancel()
	p.mu.Lock()
	p.closed = true
	nodes := slices.Collect(maps.Values(p.nodes))
	p.mu.Unlock()
	for _, n := range nodes {
		n.disconnect(errClosed)
	}
	p.wg.Wait()
}

// begin registers a goroutine that Close waits for; false after Close.
func (p *Peers) begin() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Add(1)
	return true
}

// peer is one node as a Caller.
type peer struct {
	p     *Peers
	id    metadata.NodeID
	meta  *connPool
	bulk  *connPool
	homes *connPool
	// mirror has its own connection, since changes wait for it.
	mirror *connPool
}

var _ Caller = (*peer)(nil)

func (n *peer) disconnect(why error) {
	n.meta.disconnect(why)
	n.bulk.disconnect(why)
	n.homes.disconnect(why)
	n.mirror.disconnect(why)
}

// Do makes one call.
func (n *peer) Do(ctx context.Context, c *Call) error {
	c.ErrBody, c.N = nil, 0
	err := n.do(ctx, c)
	s := &n.p.stats
	if c.Op < wire.MaxOp {
		s.calls[c.Op].Add(1)
		if err != nil {
			s.errors[c.Op].Add(1)
		}
	}
	if err == nil {
		return nil
	}
	return n.explain(ctx, c.Op, err)
}

func (n *peer) do(ctx context.Context, c *Call) error {
	body, err := encode(c.Body)
	if err != nil {
		return err
	}
	defer bodies.Put(body)
	if err := checkSize(body.B, c.Data); err != nil {
		return err
	}
	if ended(ctx) {
		return ctxErrno(ctx)
	}
	l := n.pool(c.Op)
	w := newWaiter(ctx, n.p.cfg.Timeout, c)
	defer w.release()
	w.body = body.B
	w.disconnects = l.disconnects.Load()
	for {
		conn, err := l.conn(ctx, w)
		if err == nil {
			err = conn.do(ctx, w)
		}
		if err == errUnsent {
			continue // the connection had just ended; the deadline bounds the retries
		}
		if w.reply == nil {
			return err
		}
		status, _ := err.(syscall.Errno)
		return cmp.Or(c.accept(status, w.reply.B), err)
	}
}

// pool returns the connections that carry op.
func (n *peer) pool(op wire.Op) *connPool {
	switch op.Purpose() {
	case wire.PurposeBulk:
		return n.bulk
	case wire.PurposePeer:
		return n.homes
	case wire.PurposeMirror:
		return n.mirror
	}
	return n.meta
}

// ended reports whether ctx has ended, by its deadline too, because its timer may fire late.
func ended(ctx context.Context) bool {
	d, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(d)
}

func checkSize(body []byte, data [][]byte) error {
	n := 0
	for _, p := range data {
		n += len(p)
	}
	if n > wire.MaxData || len(body) > wire.MaxFrame-n {
		return &connectError{syscall.EMSGSIZE, fmt.Errorf("request of %d and %d bytes", len(body), n)}
	}
	return nil
}

// explain adds op and node to an error, and counts it.
func (n *peer) explain(ctx context.Context, op wire.Op, err error) error {
	e := &callError{op: op, peer: n.id}
	if errno, ok := err.(syscall.Errno); ok {
		e.errno = errno
	} else if e.cause = err; !errors.As(err, &e.errno) {
		e.errno = syscall.EIO
	}
	s := &n.p.stats
	switch {
	case n.p.ctx.Err() != nil && ctx.Err() == nil:
		e.errno = syscall.ESHUTDOWN
	case e.errno == syscall.ECONNRESET:
		s.lost.Add(1)
	case e.errno == syscall.EINTR && ctx.Err() != nil:
		s.interrupted.Add(1)
	case e.errno == syscall.ETIMEDOUT:
		s.timedOut.Add(1)
	}
	return e
}

// waiter is an outstanding call: its deadline and its result. Waiters are pooled: a
// caller that gives up removes its own from the connection first.
type waiter struct {
	call        *Call
	body        []byte // the encoded request
	timer       *time.Timer
	expiry      time.Time
	disconnects uint64 // the pool's count when the call began

	done chan struct{} // one token, so that completing a call never blocks
	err  error         // set before done
	// reply is the body of the reply, set before done.
	reply *bytebufferpool.ByteBuffer
	// receiving is set while the reply is being read into call. Guarded by the
	// connection's mu.
	receiving bool
	// hasReadToken is set while the caller holds the connection's read token; only the caller uses the field.
	hasReadToken bool
}

var waiters = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &waiter{timer: t, done: make(chan struct{}, 1)}
}}

func newWaiter(ctx context.Context, timeout time.Duration, c *Call) *waiter {
	w := waiters.Get().(*waiter)
	now := time.Now()
	w.call, w.expiry = c, now.Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(w.expiry) {
		w.expiry = d
	}
	w.timer.Reset(w.expiry.Sub(now))
	return w
}

// ctxPoll is how long a call waits before it checks its context. Most calls are answered sooner, which avoids the
// lazily made Done channel of their context.
const ctxPoll = 10 * time.Millisecond

// pollOnce waits up to ctxPoll for the reply, and reports whether it has arrived.
func (w *waiter) pollOnce() bool {
	if w.left() <= ctxPoll {
		return false
	}
	w.timer.Reset(ctxPoll)
	select {
	case <-w.done:
		return true
	case <-w.timer.C:
		w.timer.Reset(max(w.left(), 0))
		return false
	}
}

func (w *waiter) release() {
	w.timer.Stop()
	if w.reply != nil {
		bodies.Put(w.reply)
	}
	w.call, w.body, w.reply = nil, nil, nil
	w.err, w.receiving, w.hasReadToken = nil, false, false
	waiters.Put(w)
}

func (w *waiter) left() time.Duration { return time.Until(w.expiry) }

// wait returns the Wait field of the request's header.
func (w *waiter) wait() uint32 {
	return uint32(min(max(w.left().Milliseconds()+1, 1), math.MaxUint32))
}
