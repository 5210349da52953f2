package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// ServerConfig configures a Server. Key, Job and Handlers are required; zero values of the rest are
// the defaults.
type ServerConfig struct {
	Key  Key
	Job  string // job id, restart count and component: peers with another one are refused
	Self metadata.NodeID
	// Protect is the protection of connections; peers with another setting are refused.
	Protect secure.Mode

	Handlers map[wire.Op]Handler
	// Inline reports which ops the reader goroutine answers: small ones that seldom block. Their ctx has already
	// ended: a handler that would block returns context.Canceled, and is called again on a worker.
	Inline func(wire.Op) bool
	// InlineWhenIdle reports which further ops it answers while no other request is outstanding on the connection: ops
	// that may take as long as a disk access.
	InlineWhenIdle func(wire.Op) bool
	// Stream receives the authenticated connections for streams. Until it returns, Close closes the
	// connection; afterwards its new owner must.
	Stream func(conn net.Conn, peer metadata.NodeID)

	// Epoch is the epoch of this node's map, sent with every reply.
	Epoch func() metadata.Epoch
	// NewerEpoch is called when a peer's map is newer, once for each epoch and connection. It must
	// not block.
	NewerEpoch func(peer metadata.NodeID, e metadata.Epoch)

	Log *logrus.Entry

	MaxConns    int // concurrent connections; 8192
	MaxInFlight int // requests under way on one connection; 64
	// Memory limits the bytes of requests and replies with bulk data; 256 MiB. It is at least wire.MaxFrame.
	Memory     int64
	MaxWorkers int // concurrent handlers that are not inline, for each purpose; 256

	HandshakeTimeout time.Duration // 5 s
	IdleTimeout      time.Duration // between two frames; 10 min
	FrameTimeout     time.Duration // from a frame's first byte to its last, either way; 15 s
}

func (c *ServerConfig) validate() error {
	var errs []error
	if c.Key == (Key{}) {
		errs = append(errs, errors.New("no key"))
	}
	if c.Job == "" {
		errs = append(errs, errors.New("no job"))
	}
	if len(c.Handlers) == 0 && c.Stream == nil {
		errs = append(errs, errors.New("no handlers"))
	}
	for op, h := range c.Handlers {
		if !op.Known() || h == nil {
			errs = append(errs, fmt.Errorf("handler of %v", op))
		}
	}
	if c.MaxConns < 0 || c.MaxInFlight < 0 || c.MaxWorkers < 0 {
		errs = append(errs, errors.New("negative bound"))
	}
	if c.Memory != 0 && c.Memory < wire.MaxFrame {
		errs = append(errs, fmt.Errorf("memory of %d bytes, want at least %d", c.Memory, wire.MaxFrame))
	}
	if c.HandshakeTimeout < 0 || c.IdleTimeout < 0 || c.FrameTimeout < 0 {
		errs = append(errs, errors.New("negative timeout"))
	}
	if len(errs) > 0 {
		return fmt.Errorf("rpc server: %w", errors.Join(errs...))
	}
	return nil
}

// DefaultMemory is the default of ServerConfig.Memory.
const DefaultMemory = 256 << 20

func (c *ServerConfig) setDefaults() {
	setDefault(&c.MaxConns, 8192)
	setDefault(&c.MaxInFlight, 64)
	setDefault(&c.MaxWorkers, 256)
	setDefault(&c.Memory, DefaultMemory)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.IdleTimeout, 10*time.Minute)
	setDefault(&c.FrameTimeout, 15*time.Second)
	if c.Epoch == nil {
		c.Epoch = func() metadata.Epoch { return 0 }
	}
	if c.NewerEpoch == nil {
		c.NewerEpoch = func(metadata.NodeID, metadata.Epoch) {}
	}
	c.Log = cmp.Or(c.Log, quietLog())
}

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func quietLog() *logrus.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}

// Server answers the calls of other nodes.
type Server struct {
	cfg            ServerConfig // without the key
	id             identity
	handlers       [wire.MaxOp]Handler
	inline         [wire.MaxOp]bool
	inlineWhenIdle [wire.MaxOp]bool
	seen           *nonceRing
	closedReplies  closedReplies
	stats          serverStats
	refusals       refusals
	memory         *memory
	meta           *workers
	bulk           *workers
	homes          *workers
	mirror         *workers
	endedCtx       context.Context // the context of inline ops; it has ended
	ctx            context.Context // ends with Close
	cancel         context.CancelFunc
	wg             sync.WaitGroup // connections and workers

	mu        sync.Mutex
	closed    bool                       // guarded by mu
	listeners map[net.Listener]struct{}  // guarded by mu
	conns     map[net.Conn]struct{}      // guarded by mu
	serving   map[wire.Nonce]*serverConn // guarded by mu
	drained   *nonceRing                 // nonces of connections that must not be served any more
}

// NewServer returns a server; Serve starts it.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s := &Server{
		id:        newIdentity(cfg.Key, cfg.Job, cfg.Self, cfg.Protect),
		seen:      newNonceRing(remembered),
		listeners: make(map[net.Listener]struct{}),
		conns:     make(map[net.Conn]struct{}),
		serving:   make(map[wire.Nonce]*serverConn),
		drained:   newNonceRing(remembered),
	}
	for op, h := range cfg.Handlers {
		s.handlers[op] = h
		s.inline[op] = cfg.Inline != nil && cfg.Inline(op)
		s.inlineWhenIdle[op] = cfg.InlineWhenIdle != nil && cfg.InlineWhenIdle(op)
	}
	cfg.Key = Key{}
	s.cfg = cfg
	s.memory = newMemory(cfg.Memory)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.meta = newWorkers(s, cfg.MaxWorkers)
	s.bulk = newWorkers(s, cfg.MaxWorkers)
	s.homes = newWorkers(s, cfg.MaxWorkers)
	s.mirror = newWorkers(s, cfg.MaxWorkers)
	over, end := context.WithCancel(context.Background())
	end()
	s.endedCtx = over
	return s, nil
}

// Serve answers connections from l until Close, then returns nil. It closes l.
// It may be called for several listeners at once.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	if !s.enter(l) {
		return nil
	}
	defer s.leave(l)
	for {
		conn, err := l.Accept()
		if s.ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			if !s.canWait(err) {
				return fmt.Errorf("accept on %v: %w", l.Addr(), err)
			}
			continue
		}
		s.admit(conn)
	}
}

func (s *Server) enter(l net.Listener) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.listeners[l] = struct{}{}
	s.wg.Add(1)
	return true
}

func (s *Server) leave(l net.Listener) {
	s.mu.Lock()
	delete(s.listeners, l)
	s.mu.Unlock()
	s.wg.Done()
}

// canWait reports whether accept failed for want of descriptors or memory; then it pauses briefly, and accept can be
// retried.
func (s *Server) canWait(err error) bool {
	var ne interface{ Temporary() bool }
	if errors.Is(err, net.ErrClosed) || !errors.As(err, &ne) || !ne.Temporary() {
		return false
	}
	s.cfg.Log.WithError(err).Warn("accept failed, retried in 50 ms; raise the limit of open files if this repeats")
	retry.Pause(s.ctx, 50*time.Millisecond)
	return true
}

// admit starts the goroutine of a new connection, or closes it if there are too many.
func (s *Server) admit(conn net.Conn) {
	s.mu.Lock()
	full := len(s.conns) >= s.cfg.MaxConns
	if s.closed || full {
		s.mu.Unlock()
		if full {
			s.stats.reject(errFull)
		}
		_ = conn.Close()
		return
	}
	s.conns[conn] = struct{}{}
	s.stats.conns.Add(1)
	s.wg.Add(1)
	s.mu.Unlock()
	go func() {
		defer s.wg.Done()
		s.serveConn(conn)
	}()
}

func (s *Server) forget(conn net.Conn) {
	s.mu.Lock()
	delete(s.conns, conn)
	s.stats.conns.Add(-1)
	s.mu.Unlock()
}

// serveConn serves a connection until it ends.
func (s *Server) serveConn(accepted net.Conn) {
	defer s.forget(accepted)
	keepAlive(accepted)
	conn, hello, err := s.handshake(accepted)
	if err != nil {
		_ = accepted.Close()
		s.logCut(accepted, hello.From, "handshake", err)
		return
	}
	if hello.Purpose == wire.PurposeStream {
		if s.cfg.Stream == nil {
			_ = conn.Close()
			return
		}
		s.cfg.Stream(conn, hello.From)
		return
	}
	err = s.serveFrames(conn, hello)
	s.logCut(conn, hello.From, "connection", err)
}

// handshake does the handshake and returns the protected connection.
func (s *Server) handshake(conn net.Conn) (net.Conn, wire.Hello, error) {
	_ = conn.SetDeadline(time.Now().Add(s.cfg.HandshakeTimeout)) // the next read of a dead connection fails
	conn, hello, err := s.id.acceptHandshake(conn, s.seen)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errSlow
	}
	if err != nil {
		return nil, hello, err
	}
	s.stats.accepted.Add(1)
	return conn, hello, conn.SetDeadline(time.Time{})
}

// logCut counts and logs why a connection ended.
func (s *Server) logCut(conn net.Conn, peer metadata.NodeID, what string, err error) {
	log := s.cfg.Log.WithFields(logrus.Fields{"peer": peer, "addr": conn.RemoteAddr().String()}).WithError(err)
	if s.ctx.Err() == nil && s.stats.reject(err) {
		if n, first := s.refusals.count(hostOf(conn.RemoteAddr()), time.Now()); first {
			log.WithField("more", n).Warn(what + " refused")
			return
		}
	}
	log.Debug(what + " ended")
}

// Close closes all connections and waits for every handler and goroutine.
func (s *Server) Close() error {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	for l := range s.listeners {
		_ = l.Close()
	}
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}

// Stats returns the counters.
func (s *Server) Stats() ServerStats {
	st := s.stats.snapshot()
	st.Memory = s.memory.stats()
	return st
}

// keepAlive makes the kernel detect a peer whose machine has failed.
func keepAlive(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		cfg := net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4}
		_ = tcp.SetKeepAliveConfig(cfg) // best effort
	}
}
