package shard

import (
	"context"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
)

const (
	firstPause   = 10 * time.Millisecond
	longestPause = 5 * time.Second
)

// repeat makes Run repeat a commit that may have taken effect at the mirror of the store. Until its success is known,
// it cannot be cancelled, and no order may go to the shards: another node may continue from the mirror.
func (d *Manager) repeat(commit func(context.Context) error) {
	d.mu.Lock()
	d.doubts = append(d.doubts, commit)
	d.mu.Unlock()
	select {
	case d.doubt <- struct{}{}:
	default:
	}
}

// settleLoop repeats the commits in doubt until each has succeeded, or ctx ends.
func (d *Manager) settleLoop(ctx context.Context) {
	var doubts []func(context.Context) error
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.doubt:
		}
		for b := retry.New(firstPause, longestPause, 0); ; {
			d.mu.Lock()
			doubts = append(doubts, d.doubts...)
			d.doubts = nil
			d.mu.Unlock()
			if len(doubts) == 0 || !b.Wait(ctx) {
				break
			}
			doubts = slices.DeleteFunc(doubts, func(commit func(context.Context) error) bool { return commit(ctx) == nil })
		}
	}
}
