package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
)

// runsApart separates the numbers of two runs, for numbers that a run derives from its own.
const runsApart = metadata.Run(time.Second)

// numberRun numbers this run of the node's daemon: by the clock, and above all earlier runs, even if the clock was set
// back. Other nodes refuse requests of an earlier run as late.
func (d *Daemon) numberRun() error {
	record := filepath.Join(d.job.Dirs.Run, "run")
	d.run = metadata.Run(d.phases.t.Started)
	switch b, err := os.ReadFile(record); {
	case err == nil:
		was, err := strconv.ParseUint(string(b), 10, 64)
		if err != nil {
			return fmt.Errorf("number of the daemon's last run: %s: %w", record, err)
		}
		d.run = max(d.run, metadata.Run(was)+runsApart)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("number of the daemon's last run: %w", err)
	}
	if err := node.ReplaceFile(record, strconv.AppendUint(nil, uint64(d.run), 10)); err != nil {
		d.log.WithError(err).Warn("run number not recorded: if the clock is set back, other nodes refuse the next run of this daemon")
	}
	return nil
}
