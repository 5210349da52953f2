package daemon

import (
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
)

// TestReportsFitIntoTheFailureTimeout: a node of a large job may lose several reports before it is given up, and a
// small job keeps its report interval.
func TestReportsFitIntoTheFailureTimeout(t *testing.T) {
	for _, c := range []struct {
		nodes, timeout int
		want           time.Duration
	}{
		{4, 0, 250 * time.Millisecond}, {127, 4, 250 * time.Millisecond}, {256, 0, 750 * time.Millisecond},
		{1024, 0, 1875 * time.Millisecond}, {4096, 0, 1875 * time.Millisecond}, {4096, 60, 7500 * time.Millisecond},
	} {
		var got Timing
		got.setDefaults(&job.File{Hosts: make([]string, c.nodes), FailureTimeout: c.timeout})
		if got.Report != c.want {
			t.Errorf("%d nodes, failure_timeout %d: a report every %v, want %v", c.nodes, c.timeout, got.Report, c.want)
		}
	}
}
