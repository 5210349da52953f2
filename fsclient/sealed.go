package fsclient

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
)

// How long a read of a dataset waits for what may come to be. A file that is
// being fetched is waited for without an end: its owner says that it is.
const (
	lostPatience  = time.Minute     // for a node that does not answer to come back, or to be given up
	shortPatience = 5 * time.Second // for bytes that the owner has not, although it says so
	firstPause    = 5 * time.Millisecond
	longestPause  = 500 * time.Millisecond
)

// readFileSealed reads from a file of a dataset, all of p. Nothing there is a hole:
// bytes that are missing are an error, never zeros.
func (c *Client) readFileSealed(ctx context.Context, a metadata.Attr, order []metadata.NodeID, to *datapath.Pipe, p []byte, off int64) error {
	spans := datapath.Spans(a.Layout.Chunk(), order, off, int64(len(p)))
	to = whole(to, spans)
	return each(ctx, spans, func(ctx context.Context, s datapath.Span) error {
		w := sealedSpan{c: c, a: &a, order: order, to: to, Span: s}
		if err := w.read(ctx, p[s.Pos-off:][:s.Len]); err != nil {
			return fmt.Errorf("inode %v: bytes at %d: %w", a.Ino, s.Pos, err)
		}
		return nil
	})
}

// ReadIfPresent fills p from offset off of a file of a dataset, if the nodes that have those bytes can give them at once:
// EAGAIN is that one of them cannot.
func (c *Client) ReadIfPresent(ctx context.Context, a metadata.Attr, p []byte, off int64) error {
	order, err := c.order(ctx, a.Ino, a.Layout)
	if err != nil {
		return err
	}
	for _, s := range datapath.Spans(a.Layout.Chunk(), order, off, int64(len(p))) {
		w := sealedSpan{c: c, a: &a, order: order, here: true, Span: s}
		if err := w.try(ctx, p[s.Pos-off:][:s.Len]); err != nil {
			return fmt.Errorf("inode %v: bytes at %d: %w", a.Ino, s.Pos, err)
		}
	}
	return nil
}

// sealedSpan is a read of a span that goes on until it has succeeded or cannot.
type sealedSpan struct {
	c     *Client
	a     *metadata.Attr
	order []metadata.NodeID
	to    *datapath.Pipe // may be nil
	here  bool           // what is there at once
	datapath.Span
	since time.Time // when the trouble began that it waits for; zero is none
	bad   int       // how often the bytes had changed on the way
}

// badTries is how often bytes are read that change on the way.
const badTries = 3

func (s *sealedSpan) read(ctx context.Context, p []byte) error {
	for b := retry.New(firstPause, longestPause, 0); ; {
		err := s.try(ctx, p)
		switch {
		case err == nil:
			return nil
		case !s.worth(err):
			if errors.Is(err, syscall.EBADMSG) {
				err = fmt.Errorf("%v: %w", err, syscall.EIO)
			}
			return err
		}
		if !b.Wait(ctx) {
			return ctxErrno(ctx)
		}
	}
}

// errShort says that an owner has fewer bytes than the file.
var errShort = fmt.Errorf("bytes are missing: %w", syscall.EIO)

// try asks the node that has the span by the map of now.
func (s *sealedSpan) try(ctx context.Context, p []byte) error {
	node, off := s.Node, s.Off
	if h := s.c.cfg.View().Map.Holder(s.a.Ino, s.Node); h != s.Node {
		off = datapath.StandIn(s.a.Layout.Chunk(), len(s.order), slices.Index(s.order, s.Node), s.a.Size, off)
		node = h
	}
	d, err := s.c.dataOf(node)
	n := 0
	if err == nil {
		n, err = s.readAt(ctx, d, p, off)
	}
	switch {
	case err != nil:
		return err
	case n < len(p):
		s.to.Spoil()
		return errShort
	}
	s.c.countRead(node, n)
	return nil
}

func (s *sealedSpan) readAt(ctx context.Context, d datapath.Store, p []byte, off int64) (int, error) {
	if !s.here {
		return s.c.readSealedAt(ctx, d, s.a.Ino, s.to, p, off)
	}
	if h, ok := d.(datapath.PresentReader); ok {
		return h.ReadIfPresent(ctx, s.a.Ino, p, off)
	}
	return 0, fmt.Errorf("node %d does not say what it has: %w", s.Node, syscall.EAGAIN)
}

// readSealedAt reads from an object of a dataset, with a look at what arrives if
// that is wanted.
func (c *Client) readSealedAt(ctx context.Context, d datapath.Store, ino metadata.Ino, to *datapath.Pipe, p []byte, off int64) (int, error) {
	if s, ok := d.(datapath.SummedReader); ok && c.cfg.VerifyReads {
		n, err := s.ReadSummed(ctx, ino, p, off)
		if errors.Is(err, syscall.EBADMSG) {
			c.cfg.Log.WithError(err).WithField("inode", ino.String()).Warn("bytes have changed on the way: read again")
		}
		return n, err
	}
	return readAt(ctx, d, ino, to, p, off)
}

// worth reports whether what failed with err may succeed now.
func (s *sealedSpan) worth(err error) bool {
	patience := lostPatience
	switch {
	case errors.Is(err, syscall.EAGAIN):
		s.since = time.Time{}
		return true
	case errors.Is(err, syscall.EBADMSG):
		s.bad++
		return s.bad < badTries
	case errors.Is(err, errShort):
		patience = shortPatience
	case !rpc.Unanswered(err):
		return false
	}
	now := s.c.cfg.Now()
	if s.since.IsZero() {
		s.since = now
	}
	return now.Sub(s.since) < patience
}
