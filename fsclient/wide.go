package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata"
)

// entryHome is the node that keeps the entry name of dir.
func (c *Client) entryHome(ctx context.Context, dir metadata.Ino, name string) (metadata.NodeID, error) {
	e := c.wide.Epoch(dir)
	m := c.cfg.View().Map
	if e > m.Epoch {
		var err error
		if m, err = c.awaitEpoch(ctx, e); err != nil {
			return 0, fmt.Errorf("directory %v: %w", dir, err)
		}
	}
	return m.EntryHome(dir, name, e), nil
}

// at is the store that keeps the entry name of dir.
func (c *Client) at(ctx context.Context, dir metadata.Ino, name string) (metadata.NodeStore, error) {
	id, err := c.entryHome(ctx, dir, name)
	if err != nil {
		return nil, err
	}
	s, err := c.metaOf(id)
	if err != nil {
		return nil, fmt.Errorf("entry %q of %v: %w", name, dir, err)
	}
	return s, nil
}

const (
	settlePatience = 15 * time.Second // for a directory whose entries move
	settlePause    = time.Millisecond // before the first new try; each is twice as long, to settleMost
	settleMost     = 32 * time.Millisecond
	wrongTurns     = 4 // that can be explained; after them a pause
)

// routed calls fn until a node keeps the entry that it is about: fn asks at for
// the node each time. It goes on at once where it is told to go elsewhere, and
// after a pause where entries are just moving.
func routed[T any](ctx context.Context, c *Client, fn func() (T, error)) (T, error) {
	r := route{backoff: retry.New(settlePause, settleMost, 0)}
	for {
		v, err := fn()
		if err == nil || !c.again(ctx, &r, err) {
			return v, r.verdict(err)
		}
	}
}

// route is how a call has fared so far.
type route struct {
	turns   int
	backoff retry.Backoff
	waited  time.Duration
}

// verdict is the error for the caller: an application is not told to try again.
func (r *route) verdict(err error) error {
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EREMOTE) {
		return fmt.Errorf("%v: %w", err, syscall.EIO)
	}
	return err
}

// again says whether the call that failed with err is to be tried again now.
func (c *Client) again(ctx context.Context, r *route, err error) bool {
	var e *metadata.Redirect
	switch {
	case errors.As(err, &e):
		c.wide.Learn(e)
		if r.turns++; r.turns < wrongTurns {
			return true
		}
	case !errors.Is(err, syscall.EAGAIN):
		return false
	}
	pause := r.backoff.Next()
	if r.waited += pause; r.waited > settlePatience {
		return false
	}
	return retry.Pause(ctx, pause)
}
