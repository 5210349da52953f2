package daemon

import (
	"context"
	"errors"

	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// pace makes the bounds that the job file asks for.
func (d *Daemon) pace() {
	d.stageRate, d.serveRate = rate.New(d.job.Rate, nil), rate.New(d.job.ServeRate, nil)
	if d.stageRate != nil {
		d.cfg.Source = source.Paced(d.cfg.Source, func(n int64) error { return d.stageRate.Take(d.ctx, n) })
	}
	d.dirty.lazy, d.dirty.most, d.dirty.step = dirtyLazy, dirtyMost, dirtyStep
	d.log.WithField("dirty_bytes", int64(dirtyMost)).Info("staged bytes that are not on the disk yet are bounded")
	if d.job.Rate > 0 || d.job.ServeRate > 0 {
		d.log.WithField("rate", d.job.Rate).WithField("serve_rate", d.job.ServeRate).Info("bytes a second are bounded; 0 is no bound")
	}
}

// serve returns when n bytes of ino may be sent to another node. Who reads of a
// dataset asks again when that takes long (EAGAIN).
func (d *Daemon) serve(ctx context.Context, ino metadata.Ino, n int64) error {
	if ino.Sealed() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, waitTime, errBusy)
		defer cancel()
	}
	return d.serveRate.Take(ctx, n)
}

var errBusy = errors.New("others are served before")

// Paces is the bounds of a node, and what they have done; nil is no bound.
type Paces struct {
	Stage *rate.Stats `json:"stage,omitempty"`
	Serve *rate.Stats `json:"serve,omitempty"`
}
