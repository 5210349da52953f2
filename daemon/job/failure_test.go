package job

import (
	"testing"
	"time"
)

// TestFailureTimings: for any failure timeout, a silent daemon is restarted, and has time to report, before its node is
// given up; that happens before Slurm drains the node; and one or two lost heartbeats do not restart a daemon.
func TestFailureTimings(t *testing.T) {
	const unkillable = 60 * time.Second // Slurm's default
	all := []int{0}
	for s := int(MinFailureTimeout / time.Second); s <= int(MaxFailureTimeout/time.Second); s++ {
		all = append(all, s)
	}
	for _, s := range all {
		j := File{FailureTimeout: s}
		if err := CheckFailureTimeout(j.GiveUp()); err != nil {
			t.Errorf("%d s: %v", s, err)
		}
		h, w := j.Heartbeat(), j.Watchdog()
		if w < 3*h || w > j.GiveUp()/2 || j.GiveUp()+5*time.Second > unkillable {
			t.Errorf("%d s: heartbeat %v, watchdog %v, give-up %v, Slurm %v", s, h, w, j.GiveUp(), unkillable)
		}
	}
	for _, d := range []time.Duration{0, MinFailureTimeout - 1, MaxFailureTimeout + 1} {
		if CheckFailureTimeout(d) == nil {
			t.Errorf("%v is accepted", d)
		}
	}
}
