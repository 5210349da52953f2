package daemon

import (
	"cmp"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/leader"
)

// Timing holds the intervals and timeouts of the control plane. The zero value means the defaults.
type Timing struct {
	Report time.Duration // between two reports; 250 ms, more on large jobs
	Down   time.Duration // silence after which a node is given up; depends on the job
	Out    time.Duration // between two scans for files to copy out; 5 s
	Sweep  time.Duration // before a sweep for leftovers; 5 s
	Scrub  time.Duration // between two rounds of the scrub; 10 min
	Settle time.Duration // how long a file must be unwritten before it is copied out; 3 s
}

func (t *Timing) setDefaults(j *job.File) {
	t.Down = cmp.Or(t.Down, j.GiveUp())
	t.Report = cmp.Or(t.Report, leader.Every(len(j.Hosts), t.Down))
	t.Out = cmp.Or(t.Out, 5*time.Second)
	t.Scrub = cmp.Or(t.Scrub, 10*time.Minute)
	t.Settle = cmp.Or(t.Settle, 3*time.Second)
	t.Sweep = cmp.Or(t.Sweep, 5*time.Second)
}
