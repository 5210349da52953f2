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
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
)

// How long a read of a dataset is retried. Bytes that their owner is fetching
// (EAGAIN) are waited for without a bound.
const (
	lostPatience  = time.Minute     // for a node that does not answer
	shortPatience = 5 * time.Second // for bytes that the owner lacks, although the file is staged
	firstPause    = 5 * time.Millisecond
	longestPause  = 500 * time.Millisecond
	badTries      = 3 // for bytes with a wrong checksum
)

// sealedRead reads a span of a file of a dataset, and retries.
type sealedRead struct {
	d     *Data
	a     *metadata.Attr
	order []metadata.NodeID
	opts  ReadOpts
	datapath.Span
	since time.Time // of the first failure in a row; zero is none
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

// errShort says that an owner has fewer bytes than the file.
var errShort = fmt.Errorf("bytes are missing: %w", syscall.EIO)

// try asks the node that holds the span now.
func (s *sealedRead) try(ctx context.Context, p []byte) error {
	id, off := s.Node, s.Off
	if h := s.d.cfg.Nodes.Holder(s.a.Ino, s.Node); h != s.Node {
		off = datapath.StandIn(s.a.Layout.Chunk(), len(s.order), slices.Index(s.order, s.Node), s.a.Size, off)
		id = h
	}
	node, err := s.d.cfg.Nodes.Data(id)
	n := 0
	if err == nil {
		n, err = s.d.readVerified(ctx, node, s.a.Ino, p, off, s.opts)
	}
	switch {
	case err != nil:
		return err
	case n < len(p):
		s.opts.Pipe.Spoil()
		return errShort
	}
	s.d.count(&s.d.readLocal, &s.d.readRemote, id, n)
	return nil
}

// retriable reports whether a read that failed with err may succeed now.
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
