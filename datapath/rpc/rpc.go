// Package rpc is the connections between the nodes of a job: a server with a
// table of handlers, and a pool of connections to every other node on which
// many calls are under way at once. Its one idea is that nothing that a peer
// sends is read before it has proved that it has the job's key, and nothing
// that it sends afterwards is trusted with a length, a tag or a moment.
//
// The protocol is package wire's. This package knows no message but the frame
// and the handshake; it makes no call twice but for a Patient, does not know
// which node has what, and does not encrypt: who can read or change the packets of a job can
// read its data. Who cannot, cannot get in.
//
// # Connections
//
// Metadata, bulk data and streams (Raft) have connections of their own, so
// that a small call does not wait behind a large body. So have the calls by
// which homes finish what they have begun together: nothing that waits for its
// end can be in their way. A connection is made
// when the first call wants it, and closed by the client when it was idle.
// For bulk data there are up to four, each made when a call finds all others in
// use; a call takes the one with the fewest calls. What a read of 110 KiB costs
// both ends in processor time, for 16 readers on a machine of two processors
// which others used too (BenchmarkConns in integration/netcluster, medians of
// eight rounds that took turns):
//
//	connections      1        2        4        8
//	loopback    167 µs   124 µs   125 µs   117 µs
//	veth        196 µs   167 µs   153 µs   149 µs
//
// Calls fail at once, without a try, while a node is in backoff. When a node is
// given up (Cut) all calls to it end, also those that wait while a connection is
// dialled, shakes hands or is drained.
//
// A call that is alone on its connection reads its own answer; where there are
// others a goroutine of the connection does. An unused connection is read by nobody
// for 10 ms, and then by that goroutine, which sees it end; a call that comes later
// than 1 ms looks for itself. A call in between can be lost with a connection that
// the peer has closed, as any that meets the end of one.
//
// Where a connection breaks with calls under way, the next one first has the
// peer end what is left of them (OpDrain): a call that begins after another
// was lost runs after it, if that has run at all. Otherwise a write that is
// made again could be undone by its first try, and by then another may have
// come after it. Only homes among themselves, and reports, do without, so as to
// never wait.
//
// What may not be done twice (wire.Op.Remembered) goes on when its connection
// breaks, and the server remembers its reply: the last 64 of a connection, as
// many as its peer can have missed, for the last 256 connections that are not for
// bulk data. A Patient asks for it (OpCachedReply) after the drain. A call that is
// not remembered there has not begun, and is made. A server that was started again
// knows nothing of the connection: then the call is ECONNRESET, and says that it is
// not known whether it took effect.
//
// # Memory
//
// A server keeps what it reads and sends of bulk data in pooled buffers, of
// which there are at most ServerConfig.Memory bytes at a time and on one
// connection 8 MiB: who wants more is not read from until there is room. The
// other requests are at most one for each worker and connection. A client reads
// answers into the memory of its callers. Beside that a connection and one from
// the other side take less than 80 KiB.
//
// # What can go wrong with a call
//
// The errno that a call's error wraps says what happened:
//
//	ETIMEDOUT     no answer by the deadline; the call may still take effect
//	EINTR         the caller's context was cancelled; it may still take effect
//	ECONNRESET    the connection broke when the request was (partly) sent
//	EHOSTDOWN     no connection could be made; nothing was sent
//	EHOSTUNREACH  the same, and the network said so or no address is known
//	ESHUTDOWN     Peers was closed
//	EMSGSIZE      the request is larger than a frame
//	EBADRQC       the peer has no handler for the op
//	another       what the peer's handler said
//
// # Locks
//
//	Peers.mu
//	  lane.mu
//	    clientConn.mu
//	Server.mu
//	  nonceRing.mu
//
// frameWriter.turn is held while a frame is written, and nothing is locked
// under it but frameWriter.mu.
package rpc

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// NoNode is the id of a client that has no share in the job.
const NoNode metadata.NodeID = 0xffff

// Key is a job's key. It does not show itself in any format.
type Key [32]byte

const hiddenKey = "[job key]"

// String does not show the key.
func (Key) String() string { return hiddenKey }

// Format does not show the key.
func (Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenKey) }

// MarshalText does not show the key.
func (Key) MarshalText() ([]byte, error) { return []byte(hiddenKey), nil }

// MarshalJSON does not show the key.
func (Key) MarshalJSON() ([]byte, error) { return []byte(`"` + hiddenKey + `"`), nil }

// Dialer makes a connection to host:port. Tests put their faults here.
type Dialer func(ctx context.Context, addr string) (net.Conn, error)

// Request is what a handler gets. Body and Data are the handler's until its
// reply has been sent, that is, they may be handed back in the Response, but
// not kept.
type Request struct {
	Op    wire.Op
	Peer  metadata.NodeID
	Epoch metadata.Epoch // of the peer's map
	Body  []byte
	Data  []byte
}

// Response is filled in by a handler. With an error only Body is sent.
type Response struct {
	Body wire.Message // encoded when the handler has returned
	// Data is at most wire.MaxData bytes. Or the data comes from a file:
	Data []byte
	// File, if set, gives the data: Len bytes from Off, fewer where the file
	// ends. Its own offset is neither used nor moved. It must stay open until
	// Done. If the file shrinks while it is sent, the connection is cut.
	File datapath.Descriptor
	Off  int64
	Len  int64
	// Done, if set, is called once when all was sent or given up.
	Done func()

	task *task
}

// Alloc returns n bytes for the response, at most wire.MaxFrame, which are the
// server's again when it was sent or given up. It is called once. It waits
// while the server has no memory; ctx is the handler's. A Response that is no
// server's has its memory from the heap.
func (r *Response) Alloc(ctx context.Context, n int) ([]byte, error) {
	if r.task == nil {
		return make([]byte, n), nil
	}
	return r.task.alloc(ctx, n)
}

// Handler answers a request. The error's errno is the reply's status; an error
// without one is logged and becomes EIO, and so does a panic. ctx ends with the
// connection and when the caller gives up; that of an inline op has ended
// before (ServerConfig.Inline).
type Handler func(ctx context.Context, req *Request, resp *Response) error

// Call is one call and its results.
type Call struct {
	Op   wire.Op
	Body wire.Message // of the request
	Data [][]byte     // sent one behind the other; at most wire.MaxData bytes
	Into []byte       // receives the reply's data; more than fits breaks the connection
	// Pipe, if set, may receive all of the data instead, if there is much.
	Pipe *datapath.Pipe

	Reply   wire.Message // result: the reply's body is parsed into it, if it is set
	ErrBody []byte       // result: the body of a reply with an error
	N       int          // result: bytes in Into
}

// accept takes the body of a reply.
func (c *Call) accept(status syscall.Errno, body []byte) error {
	switch {
	case status == 0 && c.Reply != nil:
		return wire.Parse(body, c.Reply)
	case status != 0 && len(body) > 0:
		c.ErrBody = bytes.Clone(body)
	}
	return nil
}

// Caller makes calls to one node. Do does not touch the Call, its Data or its
// Into after it has returned. The package comment has the errors.
type Caller interface {
	Do(ctx context.Context, c *Call) error
}
