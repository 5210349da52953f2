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

// NoNode is the id of a client outside the job.
const NoNode metadata.NodeID = 0xffff

// Key is a job's key. It is hidden in every format.
type Key [32]byte

const hiddenKey = "[job key]"

// String hides the key.
func (Key) String() string { return hiddenKey }

// Format hides the key.
func (Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hiddenKey) }

// MarshalText hides the key.
func (Key) MarshalText() ([]byte, error) { return []byte(hiddenKey), nil }

// MarshalJSON hides the key.
func (Key) MarshalJSON() ([]byte, error) { return []byte(`"` + hiddenKey + `"`), nil }

// Dialer connects to host:port. Tests inject their faults here.
type Dialer func(ctx context.Context, addr string) (net.Conn, error)

// Request is the input of a handler. Body and Data are valid until the reply has been
// sent: the Response may refer to them, but they must not be kept.
type Request struct {
	Op    wire.Op
	Peer  metadata.NodeID
	Epoch metadata.Epoch // of the peer's map
	Body  []byte
	Data  []byte
	// StandIn is set if the peer is a home that another node stands in for, not the node itself.
	StandIn bool
}

// Response is filled in by a handler. With an error only Body is sent.
type Response struct {
	Body wire.Message // encoded when the handler has returned
	// Data is at most wire.MaxData bytes. File or Parts can replace it.
	Data []byte
	// File, if set, is the source of the data: Len bytes from Off, fewer where the
	// file ends. Its own offset is not used. It must stay open until Done. If it
	// shrinks while it is sent, the connection is closed.
	File datapath.Descriptor
	Off  int64
	Len  int64
	// Parts, if set, is the data instead, in this order. The range of a file must exist.
	Parts []Part
	// Done, if set, is called once when the reply was sent or dropped.
	Done func()

	task *task
}

// Part is some of the data of a response: bytes in memory, or Len bytes of File from Off.
type Part struct {
	Data []byte
	File datapath.Descriptor
	Off  int64
	Len  int64
}

// size returns the number of bytes.
func (p *Part) size() int64 {
	if p.File != nil {
		return p.Len
	}
	return int64(len(p.Data))
}

// Alloc returns n bytes for the response, at most wire.MaxFrame; the server reclaims them when the response was sent or
// dropped. It may be called once, and waits while the server is out of memory; ctx is the handler's. Outside a server
// the memory comes from the heap.
func (r *Response) Alloc(ctx context.Context, n int) ([]byte, error) {
	if r.task == nil {
		return make([]byte, n), nil
	}
	return r.task.alloc(ctx, n)
}

// Handler serves a request. The error's errno is the reply's status; an error without one, or a panic, is logged and
// becomes EIO. ctx ends with the connection and when the caller gives up; for an inline op it has already ended
// (ServerConfig.Inline).
type Handler func(ctx context.Context, req *Request, resp *Response) error

// Call is one call and its results.
type Call struct {
	Op   wire.Op
	Body wire.Message // of the request
	Data [][]byte     // sent in this order; at most wire.MaxData bytes
	Into []byte       // receives the reply's data; more than fits breaks the connection
	// Pipe, if set, may receive all of the data instead of Into, if it is large.
	Pipe *datapath.Pipe

	Reply   wire.Message // result: the reply's body is parsed into it, if it is set
	ErrBody []byte       // result: the body of a reply with an error
	N       int          // result: bytes in Into
}

// accept parses the body of a reply, or keeps that of an error.
func (c *Call) accept(status syscall.Errno, body []byte) error {
	switch {
	case status == 0 && c.Reply != nil:
		return wire.Parse(body, c.Reply)
	case status != 0 && len(body) > 0:
		c.ErrBody = bytes.Clone(body)
	}
	return nil
}

// Caller makes calls to one node. Do does not touch the Call or its memory after it
// has returned. The package comment lists the errors.
type Caller interface {
	Do(ctx context.Context, c *Call) error
}
