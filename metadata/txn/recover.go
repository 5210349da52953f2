package txn

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Run delivers outstanding decisions and resolves transactions in doubt, until ctx is done.
func (c *Coordinator) Run(ctx context.Context) {
	t := time.NewTicker(c.cfg.Timing.Retry)
	defer t.Stop()
	for {
		c.Settle(ctx)
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// Settle runs one round of Run.
func (c *Coordinator) Settle(ctx context.Context) {
	c.decideAgain(ctx)
	c.redeliver(ctx)
	c.resolveInDoubt(ctx)
}

// redeliver sends decisions to participants that have not replied.
func (c *Coordinator) redeliver(ctx context.Context) {
	c.mu.Lock()
	left := maps.Clone(c.left)
	c.mu.Unlock()
	for tx, homes := range left {
		if ctx.Err() != nil {
			return
		}
		if c.reachable(homes) {
			c.deliverOutcome(ctx, tx, homes)
		}
	}
}

func (c *Coordinator) reachable(homes []metadata.NodeID) bool {
	return slices.ContainsFunc(homes, func(id metadata.NodeID) bool { return !c.cfg.Down(id) })
}

// resolveInDoubt asks the coordinators of transactions that have been in doubt for too long: all coordinators in
// parallel, each for one transaction after the other.
func (c *Coordinator) resolveInDoubt(ctx context.Context) {
	doubts := make(map[metadata.NodeID][]metadata.InDoubt)
	for _, d := range c.store.InDoubt() {
		if c.cfg.Now().Sub(d.Since) >= c.cfg.Timing.InDoubt {
			doubts[d.Tx.Home()] = append(doubts[d.Tx.Home()], d)
		}
	}
	var wg sync.WaitGroup
	for id, ds := range doubts {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, c.cfg.Timing.Deliver) // for all; the rest wait for the next round
			defer cancel()
			for _, d := range ds {
				err := c.resolve(ctx, id, d)
				if err != nil {
					c.cfg.Log.WithError(err).WithField("transaction", d.Tx.String()).Debug("transaction stays in doubt; asked again")
				}
				if errors.Is(err, errAway) || ctx.Err() != nil {
					return
				}
			}
		})
	}
	wg.Wait()
}

// resolve applies the outcome of a transaction.
func (c *Coordinator) resolve(ctx context.Context, id metadata.NodeID, d metadata.InDoubt) error {
	p, err := c.peer(id)
	if err != nil { // the coordinator is down
		if d.GaveUp {
			return nil
		}
		c.cfg.Log.WithField("transaction", d.Tx.String()).Warn("coordinator is down: prepared transaction given up")
		return c.store.GiveUp(d.Tx)
	}
	o, err := p.Outcome(ctx, d.Tx)
	if err != nil {
		return c.away(id, err)
	}
	switch o {
	case metadata.Committed:
		return c.store.Commit(ctx, d.Tx)
	case metadata.Aborted:
		return c.store.Abort(ctx, d.Tx)
	}
	return nil
}
