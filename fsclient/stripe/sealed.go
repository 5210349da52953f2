package stripe

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
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

// How long a read of a dataset is retried. It waits without a bound for bytes that their owner is fetching (EAGAIN).
const (
	lostPatience  = time.Minute     // for a node that does not answer
	shortPatience = 5 * time.Second // for bytes that the owner lacks, although the file is staged
	firstPause    = 5 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	badTries      = 3 // for bytes with a wrong checksum
)

// sealedRead reads a span of a dataset file, with retries.
type sealedRead struct {
	d     *Data
	a     *metadata.Attr
	order []metadata.NodeID
	opts  ReadOpts
	datapath.Span
	since time.Time // of the first of consecutive failures; zero: none
	bad   int       // wrong checksums
}

func (s *sealedRead) read(ctx context.Context, p []byte) error {
	if s.opts.NoWait {
		return s.try(ctx, p)
	}
	for b := retry.New(firstPause, longestPause, 0); ; {
		err := s.try(ctx, p)
		switch {
		case err == nil:
			return nil
		case !s.retriable(err):
			if errors.Is(err, syscall.EBADMSG) {
				err = fmt.Errorf("%v: %w", err, syscall.EIO)
			}
			return err
		}
		if !b.Wait(ctx) {
			return wait.Errno(ctx)
		}
	}
}

// errShort reports that an owner has fewer bytes than the file.
var errShort = fmt.Errorf("bytes are missing: %w", syscall.EIO)

// try asks the nodes that have the span now, one after the other, the fastest first. If all fail, it returns the error
// of the owner or its stand-in.
func (s *sealedRead) try(ctx context.Context, p []byte) error {
	if s.a.Layout.Kind == metadata.Overflow {
		r := s.d.cfg.Sources.Begin(int64(len(p)), []metadata.NodeID{sources.Source})
		r.Place = s.Node
		return s.from(ctx, r, s.Node, p)
	}
	var buf [8]metadata.NodeID
	at := s.d.cfg.Nodes.Where(buf[:0], s.a, s.Node, s.Pos)
	holder, why := at[0], error(nil)
	for {
		r := s.d.cfg.Sources.Begin(int64(len(p)), at)
		err := s.from(ctx, r, holder, p)
		if r.Place == holder {
			why = err
		}
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return err
		case len(at) == 1:
			return why
		}
		at = slices.DeleteFunc(at, func(id metadata.NodeID) bool { return id == r.Place })
	}
}

// from executes the read r of bytes that holder has as owner or stand-in.
func (s *sealedRead) from(ctx context.Context, r sources.Read, holder metadata.NodeID, p []byte) error {
	off := s.Off
	if r.Place != s.Node {
		off = datapath.StandIn(s.a.Layout.Chunk(), len(s.order), slices.Index(s.order, s.Node), s.a.Size, off)
	}
	node, err := s.d.cfg.Nodes.Data(r.Place)
	n := 0
	if err == nil {
		limited, cancel := ctx, context.CancelFunc(func() {})
		if r.Patience > 0 {
			limited, cancel = context.WithTimeout(ctx, r.Patience)
		}
		n, err = s.d.readVerified(limited, node, s.a.Ino, p, off, s.opts)
		cancel()
	}
	switch {
	case err == nil && n < len(p):
		s.opts.Pipe.Spoil()
		err = errShort
	case err == nil:
		s.d.count(&s.d.readLocal, &s.d.readRemote, r.Place, n)
		if !s.opts.NoWait {
			s.d.datasets.count(s.a.Ino.Dataset(), s.placed(r.Place, holder), s.Pos, n)
		}
	}
	if ctx.Err() != nil || errors.Is(err, syscall.EAGAIN) || errors.Is(err, errShort) {
		r.Drop() // the node is not at fault
		return err
	}
	r.End(int64(n), err != nil)
	return err
}

// retriable reports whether a retry of a read that failed with err may succeed.
func (s *sealedRead) retriable(err error) bool {
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
	now := s.d.cfg.Now()
	if s.since.IsZero() {
		s.since = now
	}
	return now.Sub(s.since) < patience
}
