package daemon

import (
	"github.com/bivouacfs/bivouac/datapath/rate"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// copyRate limits the bytes per second that this node's replicas read from other nodes, so that readers get most of a
// fast network.
const copyRate = 256 << 20

// pace creates the rate limits of the job file.
func (d *Daemon) pace() {
	d.stageRate, d.serveRate = rate.New(d.job.Rate, nil), rate.New(d.job.ServeRate, nil)
	if d.stageRate != nil {
		d.cfg.Source = source.Paced(d.cfg.Source, func(n int64) error { return d.stageRate.Take(d.ctx, n) })
	}
	if d.job.Rate > 0 || d.job.ServeRate > 0 {
		d.log.WithField("rate", d.job.Rate).WithField("serve_rate", d.job.ServeRate).Info("bandwidth limited: bytes per second; 0 is unlimited")
	}
}

// Paces holds the rate limits of a node with their statistics; nil means unlimited.
type Paces struct {
	Stage *rate.Stats `json:"stage,omitempty"`
	Serve *rate.Stats `json:"serve,omitempty"`
}
