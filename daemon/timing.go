package daemon

import (
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
	if t.Down == 0 {
		t.Down = j.GiveUp()
	}
	if t.Report == 0 {
		t.Report = leader.Every(len(j.Hosts), t.Down)
	}
	if t.Out == 0 {
		t.Out = 5 * time.Second
	}
	if t.Scrub == 0 {
		t.Scrub = 10 * time.Minute
	}
	if t.Settle == 0 {
		t.Settle = 3 * time.Second
	}
	if t.Sweep == 0 {
		t.Sweep = 5 * time.Second
	}
}
