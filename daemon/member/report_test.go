package member

import (
	"testing"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/leader"
)

// TestReportAfterBroadcast: a node outside the group reports immediately when it learns of a view that it lacks.
func TestReportAfterBroadcast(t *testing.T) {
	d := &Member{cfg: Config{Job: &job.File{Hosts: []string{"n0", "n1", "n2", "n3"}, Self: 3}}, kick: make(chan struct{}, 1)}
	d.view.Version = 5
	for version, want := range map[uint64]int{4: 0, 5: 0, 6: 1} {
		if r, err := d.onReport(t.Context(), 0, &leader.Report{Node: 0, Version: version}); err != nil || r.Known {
			t.Errorf("version %d: %+v, %v", version, r, err)
		}
		if got := len(d.kick); got != want {
			t.Errorf("version %d: %d reports are due, want %d", version, got, want)
		}
		for len(d.kick) > 0 {
			<-d.kick
		}
	}
	if _, err := d.onReport(t.Context(), 1, &leader.Report{Node: 0, Version: 9}); err != nil || len(d.kick) != 0 {
		t.Errorf("a report for another node: %v, %d reports are due", err, len(d.kick))
	}
}
