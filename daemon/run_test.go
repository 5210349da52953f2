package daemon

import (
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/metadata"
)

// TestRunsGrow: a later run of a node's daemon has a greater number, whatever the clock says, since other nodes refuse
// requests from an earlier run.
func TestRunsGrow(t *testing.T) {
	dir := t.TempDir()
	last := metadata.Run(0)
	for i, clock := range []time.Time{
		time.Unix(2e9, 0), time.Unix(2e9, 1), time.Unix(1e9, 0), time.Unix(1e9, 0), time.Unix(3e9, 0), time.Unix(0, 0),
	} {
		d := &Daemon{job: &job.File{Dirs: job.Dirs{Run: dir}}, log: logrus.NewEntry(logrus.New())}
		d.phases.t.Started = metadata.TimeOf(clock)
		if err := d.numberRun(); err != nil {
			t.Fatal(err)
		}
		if i > 0 && d.run < last+runsApart || d.run < metadata.Run(d.phases.t.Started) {
			t.Errorf("run %d, by a clock of %v, has number %d after %d", i, clock, d.run, last)
		}
		last = d.run
	}
}
