package rpc

import (
	"bytes"
	"context"
	"io"
	"slices"

	"github.com/valyala/bytebufferpool"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// bodies pools the buffers of encoded messages: a request's until its frame is written, a reply's until it is written
// or parsed. Bulk data has buffers of its own (memory.go).
var bodies bytebufferpool.Pool

// encode returns the encoding of m, which may be nil; the caller returns the buffer to bodies.
func encode(m wire.Message) (*bytebufferpool.ByteBuffer, error) {
	b := bodies.Get()
	if m == nil {
		return b, nil
	}
	var err error
	if b.B, err = wire.Encode(b.B, m); err != nil {
		bodies.Put(b)
		return nil, err
	}
	return b, nil
}

// readBody reads the body of a frame; the caller returns the buffer to bodies.
func readBody(r *frameReader, h *wire.Header) (*bytebufferpool.ByteBuffer, error) {
	b := bodies.Get()
	b.B = slices.Grow(b.B[:0], int(h.Body))[:h.Body]
	if err := r.body(h, b.B); err != nil {
		bodies.Put(b)
		return nil, err
	}
	return b, nil
}

// Local executes c with handler h in this process, as a request from peer. Request and reply are encoded and parsed.
func Local(ctx context.Context, h Handler, peer metadata.NodeID, epoch metadata.Epoch, c *Call) error {
	body, err := encode(c.Body)
	if err != nil {
		return err
	}
	defer bodies.Put(body)
	var resp Response
	err = h(ctx, &Request{Op: c.Op, Peer: peer, Epoch: epoch, Body: body.B, Data: bytes.Join(c.Data, nil)}, &resp)
	if resp.Done != nil {
		defer resp.Done()
	}
	reply, eerr := encode(resp.Body)
	if eerr != nil {
		return eerr
	}
	defer bodies.Put(reply)
	c.ErrBody = nil
	if err != nil {
		c.ErrBody = bytes.Clone(reply.B)
		return err
	}
	c.N = copy(c.Into, resp.Data)
	if resp.File != nil {
		if c.N, err = resp.File.ReadAt(c.Into[:min(int64(len(c.Into)), resp.Len)], resp.Off); err != nil && err != io.EOF {
			return err
		}
	}
	if len(resp.Parts) > 0 {
		data, err := joinParts(nil, resp.Parts)
		if err != nil {
			return err
		}
		c.N = copy(c.Into, data)
	}
	return c.accept(0, reply.B)
}
