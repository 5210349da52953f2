package daemon

import (
	"cmp"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/leader"
)

// Timing is how patient the control plane is. The zero value is the default.
type Timing struct {
	Report time.Duration // between two reports; 250 ms, more on large jobs
	Down   time.Duration // silence after which a node is given up; by the job
	Out    time.Duration // between two looks at what there is to copy out; 5 s
	Sweep  time.Duration // before a sweep for leftovers; 5 s
	Scrub  time.Duration // between two rounds of the scrub; 10 min
	Settle time.Duration // a file that was written to since is not copied out yet; 3 s
}

func (t *Timing) setDefaults(j *job.File) {
	t.Down = cmp.Or(t.Down, j.GiveUp())
	t.Report = cmp.Or(t.Report, leader.Every(len(j.Hosts), t.Down))
	t.Out = cmp.Or(t.Out, 5*time.Second)
	t.Scrub = cmp.Or(t.Scrub, 10*time.Minute)
	t.Settle = cmp.Or(t.Settle, 3*time.Second)
	t.Sweep = cmp.Or(t.Sweep, 5*time.Second)
}
