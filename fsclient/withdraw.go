package fsclient

import (
	"context"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
)

// withdrawLater has the client tell the home of a file that nobody wants q any more, of
// which no answer came: it may wait in a queue there, and be granted when nobody
// looks.
func (c *Client) withdrawLater(q metadata.LockReq) {
	q.Cancel = true
	c.later(q, func(ctx context.Context) error { return c.withdraw(ctx, &q) })
}

// withdraw tries to. What was granted without its owner's knowledge ends; but what the
// owner has of the same bytes, or may just have got, does not end with that: then
// the lock stays until the owner ends that one.
func (c *Client) withdraw(ctx context.Context, q *metadata.LockReq) error {
	c.locks.begin(*q)
	defer c.locks.end(*q)
	if q.Cancel {
		a, err := c.askHome(ctx, *q)
		if err != nil || !a.Granted {
			return err
		}
		if !c.locks.nothingElse(*q) {
			c.locks.granted(*q, a.Version)
			return nil
		}
		q.Cancel, q.Waiter, q.Type = false, 0, metadata.Unlocked // if that is not answered, it alone is tried again
	}
	_, err := c.ask(ctx, *q)
	return err
}

// nothingElse reports whether the owner of q has no lock on any of its bytes, as far as was
// answered, and nothing under way but q.
func (t *lockTable) nothingElse(q metadata.LockReq) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asking[ownerIn(q)] > 1 {
		return false
	}
	m := t.files[q.Ino]
	if m == nil {
		return true
	}
	m.fold()
	return !slices.ContainsFunc(m.set, func(l metadata.Lock) bool {
		return l.Kind == q.Kind && l.Owner == q.Owner && l.Start <= q.End && q.Start <= l.End
	})
}
