package fsclient

import (
	"context"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
)

// nudge wakes who waits on c, which has room for one.
func nudge(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// linger calls tell from a nudge of kick on for as long as there is something
// pending, each time after a pause, so that much is told at once. The first
// pause is first, the others are what tell says. It ends with the client.
func (c *Client) linger(kick <-chan struct{}, first time.Duration, pending func() bool, tell func() time.Duration) {
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-kick:
		}
		for wait := first; pending(); wait = tell() {
			if !retry.Pause(c.ctx, wait) {
				return
			}
		}
	}
}

// take waits for a turn, which has room for the one who has it.
func take(ctx context.Context, turn chan struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	default:
	}
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctxErrno(ctx)
	}
}
