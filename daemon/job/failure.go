package job

import (
	"fmt"
	"time"
)

// All failure timings follow from one, the failure timeout F of the job, in this order:
//
//	Heartbeat       F/8    between two heartbeats from the daemon to its keeper; 2 s at most
//	Watchdog        F/2    the keeper kills and restarts a silent daemon: it reports again within F
//	GiveUp          F      the leader declares a silent node down
//	Slurm           60 s   UnkillableStepTimeout; F is 45 s at most
const (
	DefaultFailureTimeout = 15 * time.Second
	MinFailureTimeout     = 2 * time.Second // below some 10 s a restart can take longer than F/2
	MaxFailureTimeout     = 45 * time.Second
)

// CheckFailureTimeout refuses a failure timeout that is out of range.
func CheckFailureTimeout(d time.Duration) error {
	if d < MinFailureTimeout || d > MaxFailureTimeout {
		return fmt.Errorf("want %v to %v", MinFailureTimeout, MaxFailureTimeout)
	}
	return nil
}

// GiveUp returns the silence after which the leader declares a node down.
func (j *File) GiveUp() time.Duration {
	if j.FailureTimeout <= 0 {
		return DefaultFailureTimeout
	}
	return time.Duration(j.FailureTimeout) * time.Second
}

// Watchdog returns the silence after which the keeper kills and restarts the daemon.
func (j *File) Watchdog() time.Duration { return j.GiveUp() / 2 }

// Heartbeat returns the time between two heartbeats from the daemon to its keeper.
func (j *File) Heartbeat() time.Duration { return min(2*time.Second, j.GiveUp()/8) }
