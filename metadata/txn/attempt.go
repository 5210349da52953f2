package txn

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata"
)

// errNothing ends an attempt successfully: there is nothing to do.
var errNothing = errors.New("nothing to do")

// attempt is one try to do an operation as a transaction.
type attempt struct {
	c            *Coordinator
	tx           metadata.TxID
	others       []metadata.NodeID // prepared participants
	renameLocked bool              // the attempt holds the rename lock
	until        time.Time         // deadline of the decision, if the attempt holds the rename lock
}

// run repeats attempts at an operation until one meets no conflicting transaction.
func (c *Coordinator) run(ctx context.Context, do func(context.Context, *attempt) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timing.Total)
	defer cancel()
	var away time.Time // since when a home has been away; zero is none
	for b := pauses(); ; {
		err := c.try(ctx, do)
		if errors.Is(err, errNothing) {
			return nil
		}
		if errors.Is(err, metadata.ErrUnknownOutcome) || !retryable(err) && !c.mayReturn(err, &away) {
			return err
		}
		if !b.Wait(ctx) {
			return gaveUp(ctx)
		}
	}
}

// retryable reports whether err means that another operation was in the way.
func retryable(err error) bool {
	return errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ESTALE)
}

// errAway means that a home was not reached, or its reply was lost, although the home is not Down: it may be
// restarting.
var errAway = errors.New("a home does not answer")

// away wraps an error of a call to the home id in errAway, if it means that.
func (c *Coordinator) away(id metadata.NodeID, err error) error {
	for _, no := range []syscall.Errno{syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ECONNRESET} {
		if errors.Is(err, no) && !c.cfg.Down(id) {
			return fmt.Errorf("%w: %w", errAway, err)
		}
	}
	return err
}

// mayReturn reports whether err comes from a home that has been unreachable for a short time only. The attempt was
// aborted, so its locks are free in the meantime.
func (c *Coordinator) mayReturn(err error, since *time.Time) bool {
	if !errors.Is(err, errAway) {
		return false
	}
	now := c.cfg.Now()
	if since.IsZero() {
		*since = now
	}
	return now.Sub(*since) < c.cfg.Timing.Away
}

// The bounds of a pause, which doubles with each try.
const (
	minPause = time.Millisecond
	maxPause = 64 * time.Millisecond
)

// pauses are random down to zero, so that two transactions that conflicted do not conflict again.
func pauses() retry.Backoff { return retry.New(minPause/2, maxPause/2, 1) }

// gaveUp returns the error of a context that ended.
func gaveUp(ctx context.Context) error {
	errno := syscall.EINTR
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		errno = syscall.ETIMEDOUT
	}
	return fmt.Errorf("transaction: %w: %w", errno, ctx.Err())
}

// try makes one attempt: do collects the votes.
func (c *Coordinator) try(ctx context.Context, do func(context.Context, *attempt) error) error {
	tx, err := c.store.Begin()
	if err != nil {
		return err
	}
	a := &attempt{c: c, tx: tx}
	defer a.unlock(ctx)
	if err = do(ctx, a); err == nil { // do's errors come from conflicting changes, such as a merge that makes way
		if err = a.decide(ctx); errors.Is(err, metadata.ErrUnknownOutcome) {
			c.doubt(tx, a.others)
			return err
		}
	}
	if err != nil {
		a.abort(ctx)
		return err
	}
	a.deliver(ctx)
	return nil
}

// doubt records a transaction whose decision may have taken effect: it can only be decided again, not aborted. Until
// then it keeps its locks, and participants that ask are answered that it is undecided.
func (c *Coordinator) doubt(tx metadata.TxID, others []metadata.NodeID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubts[tx] = others
}

// decideAgain repeats the decision of the transactions in doubt.
func (c *Coordinator) decideAgain(ctx context.Context) {
	c.mu.Lock()
	doubts := maps.Clone(c.doubts)
	c.mu.Unlock()
	var wg sync.WaitGroup
	for tx, others := range doubts {
		wg.Go(func() {
			if err := c.store.Decide(tx, others); err != nil {
				c.cfg.Log.WithError(err).WithField("transaction", tx.String()).Debug("transaction not decided yet: trying again")
				return
			}
			c.mu.Lock()
			delete(c.doubts, tx)
			c.mu.Unlock()
			if len(others) > 0 {
				c.deliverOutcome(ctx, tx, others)
			}
		})
	}
	wg.Wait()
}

// part asks home to prepare edits. A home other than this one is asked only once in an attempt.
func (a *attempt) part(ctx context.Context, home metadata.NodeID, edits ...metadata.Edit) (metadata.Vote, error) {
	if home == a.c.cfg.Self {
		return a.c.store.Hold(ctx, a.tx, edits)
	}
	v, err := a.prepare(ctx, home, edits)
	if err == nil {
		a.others = append(a.others, home)
	}
	return v, err
}

func (a *attempt) prepare(ctx context.Context, home metadata.NodeID, edits []metadata.Edit) (metadata.Vote, error) {
	p, err := a.c.peer(home)
	if err != nil {
		return metadata.Vote{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, a.c.cfg.Timing.Call)
	defer cancel()
	a.c.stats.prepares.Add(1)
	v, err := p.Prepare(ctx, a.tx, edits)
	return v, a.c.away(home, err)
}

// parts is part for several homes at once; their votes are in the order of homes.
func (a *attempt) parts(ctx context.Context, homes []metadata.NodeID, edits map[metadata.NodeID][]metadata.Edit) ([]metadata.Vote, error) {
	votes := make([]metadata.Vote, len(homes))
	errs := make([]error, len(homes))
	var wg sync.WaitGroup
	for i, home := range homes {
		if home == a.c.cfg.Self {
			votes[i], errs[i] = a.c.store.Hold(ctx, a.tx, edits[home])
			continue
		}
		wg.Go(func() { votes[i], errs[i] = a.prepare(ctx, home, edits[home]) })
	}
	wg.Wait()
	for i, home := range homes {
		if errs[i] == nil && home != a.c.cfg.Self {
			a.others = append(a.others, home)
		}
	}
	return votes, errors.Join(errs...)
}

// decide commits the transaction, unless its deadline has passed.
func (a *attempt) decide(ctx context.Context) error {
	if ctx.Err() != nil {
		return gaveUp(ctx)
	}
	if a.renameLocked && a.c.cfg.Now().After(a.until) {
		return fmt.Errorf("the rename lock has ended: %w", syscall.EAGAIN)
	}
	return a.c.store.Decide(a.tx, a.others)
}

// abort aborts the transaction everywhere. A participant that misses the abort asks later.
func (a *attempt) abort(ctx context.Context) {
	a.c.store.Release(a.tx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.c.cfg.Timing.Deliver)
	defer cancel()
	var wg sync.WaitGroup
	for _, home := range a.others {
		wg.Go(func() {
			p, err := a.c.peer(home)
			if err == nil {
				err = p.Abort(ctx, a.tx)
			}
			if err != nil {
				a.c.cfg.Log.WithError(err).WithField("transaction", a.tx.String()).Debug("abort not delivered to a home: it asks later")
			}
		})
	}
	wg.Wait()
}

// deliver sends the decision to the participants. Run repeats it for those that do not answer.
func (a *attempt) deliver(ctx context.Context) {
	if len(a.others) > 0 {
		a.c.deliverOutcome(ctx, a.tx, a.others)
	}
}

// deliverOutcome sends the commit of tx to homes, and forgets tx once all of them have it.
func (c *Coordinator) deliverOutcome(ctx context.Context, tx metadata.TxID, homes []metadata.NodeID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.cfg.Timing.Deliver)
	defer cancel()
	done := make([]bool, len(homes))
	var wg sync.WaitGroup
	for i, home := range homes {
		wg.Go(func() {
			p, err := c.peer(home)
			if err == nil {
				c.stats.commits.Add(1)
				err = p.Commit(ctx, tx)
			}
			if done[i] = err == nil; err != nil {
				c.cfg.Log.WithError(err).WithField("transaction", tx.String()).Debug("commit not delivered to a home: it is retried")
			}
		})
	}
	wg.Wait()
	var rest []metadata.NodeID
	for i, home := range homes {
		if !done[i] {
			rest = append(rest, home)
		}
	}
	c.delivered(tx, rest)
}

// delivered records which participants do not have a decision yet.
func (c *Coordinator) delivered(tx metadata.TxID, rest []metadata.NodeID) {
	c.mu.Lock()
	if len(rest) > 0 {
		c.left[tx] = rest
	} else {
		delete(c.left, tx)
	}
	c.mu.Unlock()
	if len(rest) > 0 {
		return
	}
	if err := c.store.Forget(tx); err != nil {
		c.cfg.Log.WithError(err).WithField("transaction", tx.String()).Warn("record of a finished transaction not removed: it only takes space")
	}
}
