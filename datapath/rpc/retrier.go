package rpc

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

const (
	// retryFor is how long a Retrier keeps retrying after the first failure.
	retryFor     = 30 * time.Second
	firstPause   = 5 * time.Millisecond
	longestPause = 250 * time.Millisecond
)

// Retrier is a Caller for data that only one node has. Without a connection it waits for one. It repeats a call whose
// connection broke if the op is wire.Op.Repeatable; if instead the server caches the reply (wire.Op.ReplyCached), it
// asks for that first. It repeats a call whose home has moved to another node (metadata.ErrMoved). It stops after half
// a minute, when the context ends, or when the node is given up.
type Retrier struct {
	caller Caller
	dead   func() error
	limit  time.Duration
}

var _ Caller = (*Retrier)(nil)

// NewRetrier returns a Retrier for the calls of c. gone returns why the node was given up, nil while it is not.
func NewRetrier(c Caller, gone func() error) *Retrier {
	return &Retrier{caller: c, dead: gone, limit: retryFor}
}

// Do executes a call. Its error is ECONNRESET if any attempt may have taken effect.
func (p *Retrier) Do(ctx context.Context, c *Call) error {
	err := p.caller.Do(ctx, c)
	if err == nil || !retryable(c, err) {
		return err
	}
	return p.retryLoop(ctx, c, err)
}

// retryLoop repeats the call until it succeeds or must not be repeated.
func (p *Retrier) retryLoop(ctx context.Context, c *Call, err error) error {
	var lost error // an attempt that may have taken effect
	until, cancel := context.WithTimeout(ctx, p.limit)
	defer cancel()
	for b := retry.New(firstPause, longestPause, 0); retryable(c, err); {
		if errors.Is(err, syscall.ECONNRESET) && !isReplyLookup(err) && !c.Op.Reads() {
			lost = err
		}
		if !b.Wait(until) {
			break
		}
		if gone := p.dead(); gone != nil {
			err = gone
			break
		}
		err = p.retry(until, c, &lost)
	}
	if errors.Is(err, metadata.ErrMoved) { // the caller must not retry
		err = fmt.Errorf("%v: %w", err, syscall.EIO)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", ctxErrno(ctx), err)
	case lost != nil && lost != err:
		return fmt.Errorf("%w; and then %w", lost, err)
	}
	return err
}

// retry repeats the call once. For a lost call that is not repeatable it returns the cached reply, if the peer has one.
func (p *Retrier) retry(ctx context.Context, c *Call, lost *error) error {
	if what := lostIn(*lost); what != nil && c.Op.ReplyCached() {
		r, err := p.fetchReply(ctx, what)
		if err != nil {
			return err
		}
		*lost = nil
		if r.Fate != wire.NotStarted {
			return outcome(c, what, r)
		}
	}
	return p.caller.Do(ctx, c)
}

// retryable reports whether a call that failed with err may be repeated: none of it was sent, it is repeatable, or the
// peer may have cached its reply. The error of a handler is final.
func retryable(c *Call, err error) bool {
	if errors.Is(err, metadata.ErrMoved) {
		return true
	}
	var e *callError
	if !errors.As(err, &e) || e.cause == nil {
		return false
	}
	switch e.errno {
	case syscall.EHOSTDOWN, syscall.EHOSTUNREACH:
		return true
	case syscall.ECONNRESET:
		return isReplyLookup(err) || c.Op.Repeatable() || c.Op.ReplyCached() && lostIn(err) != nil
	}
	return false
}
