package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// Model is the cost of a message.
type Model struct {
	Latency    time.Duration // one way
	Bandwidth  float64       // of a node's link, in bytes per second
	PerMessage time.Duration // processor time of the receiver, which handles one message at a time
	PerByte    time.Duration
}

// Default is a 10-Gbit/s network and a slow processor: a daemon here takes 40 µs for a report.
var Default = Model{Latency: 100 * time.Microsecond, Bandwidth: 1.25e9, PerMessage: 50 * time.Microsecond, PerByte: 5 * time.Nanosecond}

// header is the overhead of a message: our frame, TCP and IP.
const header = 100

// Traffic counts what a node has sent and received.
type Traffic struct {
	Messages, Sent, Received int64
}

// network carries the messages of all nodes.
type network struct {
	model Model
	nodes []*Node

	mu      sync.Mutex
	free    []time.Time // guarded by mu; when a node's processor is free
	traffic []Traffic   // guarded by mu
	side    []int       // guarded by mu; of a partition; a lost node has its own
	streams map[*stream]bool
}

func newNetwork(m Model, n int) *network {
	return &network{model: m, free: make([]time.Time, n), traffic: make([]Traffic, n), side: make([]int, n), streams: make(map[*stream]bool)}
}

// part moves a node to a side of a partition. Streams across it end.
func (w *network) part(id metadata.NodeID, side int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.side[id] = side
	for s := range w.streams {
		if w.side[s.from] != w.side[s.to] {
			_ = s.Conn.Close()
			delete(w.streams, s)
		}
	}
}

func (w *network) connected(a, b metadata.NodeID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.side[a] == w.side[b]
}

// account adds a message of n bytes, and returns when its receiver will have handled it.
func (w *network) account(from, to metadata.NodeID, n int) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	n += header
	w.traffic[from].Messages++
	w.traffic[from].Sent += int64(n)
	w.traffic[to].Received += int64(n)
	at := time.Now().Add(w.model.Latency + time.Duration(float64(n)/w.model.Bandwidth*float64(time.Second)))
	if w.free[to].After(at) {
		at = w.free[to]
	}
	w.free[to] = at.Add(w.model.PerMessage + time.Duration(n)*w.model.PerByte)
	return w.free[to]
}

// carry waits for the duration of a message. A message to a cut-off node is lost.
func (w *network) carry(ctx context.Context, from, to metadata.NodeID, n int) error {
	select {
	case <-w.nodes[to].started:
	default:
		return fmt.Errorf("node %d: %w", to, syscall.ECONNREFUSED)
	}
	if w.connected(from, to) {
		t := time.NewTimer(time.Until(w.account(from, to, n)))
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
			return nil
		}
	}
	<-ctx.Done()
	return fmt.Errorf("node %d does not answer: %w", to, syscall.ETIMEDOUT)
}

// call makes a call, like the daemon's network.
func (w *network) call(ctx context.Context, from, to metadata.NodeID, op wire.Op, q, reply any) error {
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if err := w.carry(ctx, from, to, len(body)); err != nil {
		return err
	}
	var resp rpc.Response
	h, ok := w.nodes[to].handlers[op]
	if !ok {
		return fmt.Errorf("%v: %w", op, syscall.ENOSYS)
	}
	err = h(ctx, &rpc.Request{Op: op, Peer: from, Body: body}, &resp)
	answer, merr := resp.Body.(*wire.JSON)
	var back []byte
	if merr {
		if back, err = json.Marshal(answer.V); err != nil {
			return err
		}
	}
	if cerr := w.carry(ctx, to, from, len(back)); cerr != nil {
		return cerr
	}
	if err != nil || reply == nil || back == nil {
		return err
	}
	return json.Unmarshal(back, reply)
}

// stream is a connection of the Raft group. Its bytes are counted, but take no time.
type stream struct {
	net.Conn
	w        *network
	from, to metadata.NodeID
}

// Write counts the bytes.
func (s *stream) Write(p []byte) (int, error) {
	n, err := s.Conn.Write(p)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.traffic[s.from].Sent += int64(n)
	s.w.traffic[s.to].Received += int64(n)
	return n, err
}

// dial opens a stream from one node to another.
func (w *network) dial(from, to metadata.NodeID) (net.Conn, error) {
	if !w.connected(from, to) {
		return nil, errors.New("no route")
	}
	a, b := net.Pipe()
	out, in := &stream{a, w, from, to}, &stream{b, w, to, from}
	w.mu.Lock()
	w.streams[out], w.streams[in] = true, true
	w.mu.Unlock()
	w.nodes[to].Stream(in, from)
	return out, nil
}
