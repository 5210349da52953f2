package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// leaving is how far this node's end has come.
type leaving struct {
	mu      sync.Mutex
	leaving bool // guarded by mu
	done    bool // guarded by mu
}

func (l *leaving) state() (leaving, done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving, l.done
}

func (l *leaving) set(leaving, done bool) {
	l.mu.Lock()
	l.leaving, l.done = leaving, done
	l.mu.Unlock()
}

// Leave ends this node's part in the job. Without a stage-out nobody needs the
// node any more, and it goes at once. With one, all nodes meet twice: none
// copies before every other has seen its last writer end, and none goes before
// every other has copied. What could not be copied is in the error.
func (d *Daemon) Leave(ctx context.Context) error {
	d.leave.set(true, false)
	d.nudge()
	if len(d.job.StageOut) == 0 {
		return nil
	}
	deadline, ok := ctx.Deadline()
	if !ok {
		deadline = time.Now().Add(5 * time.Minute)
	}
	meet, cancel := context.WithDeadline(ctx, time.Now().Add(time.Until(deadline)/3))
	err := d.until(meet, func(v cluster.View) bool { return len(hostsIn(v.Map, cluster.Up)) == 0 && v.Version > 0 })
	cancel()
	if err != nil {
		d.log.WithField("hosts", hostsIn(d.View().Map, cluster.Up)).Warn("still running while this node stages out")
	}
	trouble := d.stageOutAll(ctx)
	d.leave.set(true, true)
	d.nudge()
	last := d.until(ctx, func(v cluster.View) bool { return v.Closing })
	if last != nil {
		d.log.Warn("left before the others were done")
	}
	d.linger(ctx)
	return trouble
}

// linger lets a leader tell the others that the job is closing before it goes.
func (d *Daemon) linger(ctx context.Context) {
	if g := d.raftGroup(); g == nil || !g.IsLeader() {
		return
	}
	t := time.NewTicker(d.cfg.Timing.Report / 2)
	defer t.Stop()
	end := time.After(8 * d.cfg.Timing.Report)
	for {
		v := d.View()
		_, reports := d.lead.memory(true, time.Now())
		told := true
		for _, n := range v.Map.Nodes {
			if r, ok := reports[n.ID]; ok && n.ID != d.job.Self && serving(n) && r.Version < v.Version {
				told = false
			}
		}
		if told {
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

// stageOutAll copies this node's share of all that the job file wants copied.
func (d *Daemon) stageOutAll(ctx context.Context) error {
	self, n := d.outShare()
	var errs []error
	for _, o := range d.job.StageOut {
		r, err := d.stageOut(ctx, o, self, n)
		if err != nil {
			errs = append(errs, fmt.Errorf("stage-out of %s to %s: %w", o.From, o.To, err))
		}
		d.log.WithFields(map[string]any{"from": o.From, "to": o.To, "files": r.Files, "bytes": r.Bytes}).Info("staged out")
	}
	return errors.Join(errs...)
}

// outShare is this node's place among those that copy.
func (d *Daemon) outShare() (self, n int) {
	for _, node := range d.View().Map.Nodes {
		if node.ID == d.job.Self {
			self = n
		}
		if serving(node) {
			n++
		}
	}
	return self, max(n, 1)
}

func (d *Daemon) stageOut(ctx context.Context, o OutSpec, self, n int) (stagein.OutResult, error) {
	f := d.out.Load()
	if f == nil {
		return stagein.OutResult{}, errors.New("this daemon has no mount to read scratch by")
	}
	return (*f)(ctx, o.From, o.To, self, n)
}
