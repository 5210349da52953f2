package raftstore

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/bivouacfs/bivouac/metadata"
)

// address returns a member's address for Raft: its id in decimal.
func address(id metadata.NodeID) raft.ServerAddress {
	return raft.ServerAddress(strconv.Itoa(int(id)))
}

func idOf(a string) (metadata.NodeID, error) {
	n, err := strconv.ParseUint(a, 10, 16)
	return metadata.NodeID(n), err
}

// streams is the raft.StreamLayer: it dials streams, and accepts those passed to put. Close ends all open streams.
type streams struct {
	self   metadata.NodeID
	dial   func(context.Context, metadata.NodeID) (net.Conn, error)
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	queue  chan net.Conn // a few, so that put does not wait for the transport's loop

	mu     sync.Mutex
	open   map[*stream]bool // guarded by mu
	closed bool             // guarded by mu
	users  sync.WaitGroup   // accepted streams that are still open
}

var _ raft.StreamLayer = (*streams)(nil)

func newStreams(self metadata.NodeID, dial func(context.Context, metadata.NodeID) (net.Conn, error)) *streams {
	ctx, cancel := context.WithCancel(context.Background())
	return &streams{self: self, dial: dial, ctx: ctx, cancel: cancel, queue: make(chan net.Conn, 16), open: map[*stream]bool{}}
}

// stream is a stream used by Raft's transport.
type stream struct {
	net.Conn
	owner    *streams
	accepted bool
	once     sync.Once
}

// Close is called by the transport when it no longer needs the stream.
func (s *stream) Close() error {
	err := s.Conn.Close()
	s.once.Do(func() {
		s.owner.mu.Lock()
		delete(s.owner.open, s)
		s.owner.mu.Unlock()
		if s.accepted {
			s.owner.users.Done()
		}
	})
	return err
}

// keep registers c, or closes it if the streams are closed.
func (s *streams) keep(c net.Conn, accepted bool) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close() // never used
		return nil, net.ErrClosed
	}
	st := &stream{Conn: c, owner: s, accepted: accepted}
	s.open[st] = true
	if accepted {
		s.users.Add(1)
	}
	return st, nil
}

// put queues a stream that another member has dialed.
func (s *streams) put(c net.Conn) {
	select {
	case s.queue <- c:
	case <-s.ctx.Done():
		_ = c.Close() // never used
		return
	}
	if s.ctx.Err() != nil {
		s.drain()
	}
}

// drain closes queued streams.
func (s *streams) drain() {
	for {
		select {
		case c := <-s.queue:
			_ = c.Close() // never used
		default:
			return
		}
	}
}

// Accept returns the next stream that another member opened.
func (s *streams) Accept() (net.Conn, error) {
	select {
	case c := <-s.queue:
		return s.keep(c, true)
	case <-s.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Dial opens a stream to a member.
func (s *streams) Dial(a raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	id, err := idOf(string(a))
	if err != nil {
		return nil, fmt.Errorf("member %q: %w", a, err)
	}
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	c, err := s.dial(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("member %d: %w", id, err)
	}
	return s.keep(c, false)
}

// Close ends all streams, and the dials in progress.
func (s *streams) Close() error {
	s.cancel()
	s.mu.Lock()
	s.closed = true
	for st := range s.open {
		_ = st.Conn.Close() // its user sees an error, and calls stream.Close
	}
	s.mu.Unlock()
	s.drain()
	return nil
}

// Addr returns this member's address.
func (s *streams) Addr() net.Addr { return memberAddr(s.self) }

type memberAddr metadata.NodeID

func (memberAddr) Network() string  { return "bivouac" }
func (a memberAddr) String() string { return strconv.Itoa(int(a)) }
