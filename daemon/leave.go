package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// leaving is the progress of this node's departure from the job.
type leaving struct {
	mu           sync.Mutex
	leaving      bool   // guarded by mu
	done         bool   // guarded by mu
	participants uint64 // guarded by mu; hash of the participants whose stage-out share is done
}

func (l *leaving) state() (leaving, done bool, participants uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving, l.done, l.participants
}

func (l *leaving) set(done bool, participants uint64) {
	l.mu.Lock()
	l.leaving, l.done, l.participants = true, done, participants
	l.mu.Unlock()
}

const (
	leaveTime = 5 * time.Minute // the deadline of Leave if its caller sets none
	// tellTime is left when a copy must end: to abandon a hung target, to list the failures, and to report them, so
	// that the node with the job's output notifies the user.
	tellTime = 5 * time.Second
)

// Leave ends this node's part in the job. Without a stage-out the node leaves at once. With one, all nodes synchronize
// twice: no node copies before all others have finished writing, and no node leaves before all others have copied. The
// error lists the files that could not be copied.
func (d *Daemon) Leave(ctx context.Context) error {
	d.out.Stop()
	d.left.Store(true)
	if len(d.job.StageOut) == 0 {
		d.partner.Leave()
		d.leave.set(false, 0)
		d.Nudge()
		return nil
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, leaveTime)
		defer cancel()
	}
	work, cancel := d.leaveTimeToNotify(ctx)
	defer cancel()
	trouble := d.lastWrites(work)
	d.leave.set(false, 0)
	d.Nudge()
	d.meet(work)
	trouble = errors.Join(trouble, d.copyOut(work))
	d.linger(work)
	d.partner.Leave()
	d.notifier.Final(d.out.Failures())
	return trouble
}

// leaveTimeToNotify returns a context that ends early enough before ctx to notify the user of failures.
func (d *Daemon) leaveTimeToNotify(ctx context.Context) (context.Context, context.CancelFunc) {
	deadline, _ := ctx.Deadline() // Leave has set one
	return context.WithDeadline(ctx, deadline.Add(-min(stageout.NotifyTime, time.Until(deadline)/4)))
}

// lastWrites waits until this node has finished writing, but leaves time to synchronize and to copy.
func (d *Daemon) lastWrites(ctx context.Context) error {
	client := d.client.Load()
	if client == nil {
		return nil
	}
	deadline, _ := ctx.Deadline() // Leave has set one
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/4)
	defer cancel()
	open, err := (*client).Quiesce(ctx)
	if open > 0 {
		d.log.WithField("files", open).Warn("files are still open for writing: later writes are not copied out")
	}
	if err != nil {
		d.out.SetUnwritten(err)
		return fmt.Errorf("the last writes may not be copied: %w", err)
	}
	return nil
}

// meet waits until no node runs the job any more, but leaves time to copy.
func (d *Daemon) meet(ctx context.Context) {
	deadline, _ := ctx.Deadline() // Leave has set one
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/3)
	defer cancel()
	err := d.Until(ctx, func(v cluster.View) bool { return len(leader.HostsIn(v.Map, cluster.Up)) == 0 && v.Version > 0 })
	if err != nil {
		d.log.WithField("hosts", leader.HostsIn(d.View().Map, cluster.Up)).Warn("other nodes still run the job: their later writes may not be copied out")
	}
}

// copyOut copies this node's share and waits until all nodes have copied theirs. When a node is lost or returns, the
// shares change and it copies its new one: copying a file twice is harmless.
func (d *Daemon) copyOut(ctx context.Context) error {
	deadline, _ := ctx.Deadline() // Leave has set one
	copying, cancel := context.WithDeadline(ctx, deadline.Add(-min(tellTime, time.Until(deadline)/8)))
	defer cancel()
	for {
		m := d.View().Map
		participants := leader.Participants(m)
		trouble := d.out.Final(copying, m)
		d.leave.set(true, participants)
		d.Nudge()
		err := d.Until(ctx, func(v cluster.View) bool { return v.Closing || leader.Participants(v.Map) != participants })
		if err != nil {
			d.log.Warn("deadline reached before the other nodes had copied their shares: leaving")
			return trouble
		}
		if d.View().Closing {
			return trouble
		}
		d.leave.set(false, 0)
		d.log.WithField("down", leader.HostsIn(d.View().Map, cluster.Down)).Warn("a node was lost or came back: shares of the stage-out are reassigned")
	}
}

// linger keeps a leader running, for a few reports, until the other nodes have reported that they know that the job is
// closing.
func (d *Daemon) linger(ctx context.Context) {
	d.Report(ctx)
	if !d.Leads() {
		return
	}
	t := time.NewTicker(d.cfg.Timing.Report / 2)
	defer t.Stop()
	end := time.After(8 * d.cfg.Timing.Report)
	for {
		if d.Lead().AllHave(d.View()) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-end:
			return
		case <-t.C:
		}
	}
}

// closeData closes the datasets and the store. If the job has ended and the site wants it, it keeps the datasets for
// the next job, unless a close fails.
func closeData(d *Daemon) (errs []error) {
	var keep []chunkstore.KeptObject
	if d.datasets != nil {
		if d.job.Keep && d.left.Load() { // otherwise the next daemon reuses these stores
			list, err := d.datasets.Fills.Keepable()
			keep, errs = list, append(errs, err)
		}
		errs = append(errs, d.datasets.Fills.Close())
	}
	if d.data != nil {
		errs = append(errs, d.data.Close())
	}
	if len(keep) > 0 && errors.Join(errs...) == nil {
		errs = append(errs, d.data.Keep(keep))
	}
	return errs
}
