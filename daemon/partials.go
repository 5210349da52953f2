package daemon

import (
	"os"
	"path/filepath"
)

// removePartials removes the files that an earlier run of this daemon was writing
// when it was killed. It is called before anything is written.
func (d *Daemon) removePartials() {
	paths, _ := filepath.Glob(d.dir("stage", "*", "*.new")) // the pattern is valid
	for _, path := range paths {
		if err := os.Remove(path); err != nil {
			d.log.WithError(err).Warn("half-written file of an earlier run not removed")
			continue
		}
		d.partials++
	}
}
