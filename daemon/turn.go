package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// turnDir is where this node works in a turn of a stage-in that it leads. A turn that
// comes late, because its source was stuck while another began the stage-in anew, writes
// there, and so over nothing that this node has by then from who leads after it. What
// others are to have is put in the directory of the dataset when it is whole.
func (d *Daemon) turnDir(ds metadata.DatasetID, turn int) string {
	return filepath.Join(d.stageDir(ds), "turn-"+strconv.Itoa(turn))
}

// dir is the directory of in's turn.
func (in *intake) dir() string { return in.d.turnDir(in.ds.ID, in.ds.Turn) }

// begin makes it.
func (in *intake) begin() error {
	if err := os.MkdirAll(in.dir(), 0o700); err != nil {
		return fmt.Errorf("stage-in: %w", err)
	}
	return nil
}

// put puts files of the turn in their place, unless there is a later one.
func (in *intake) put(names ...string) error {
	d := in.d
	d.stage.placeMu.Lock()
	defer d.stage.placeMu.Unlock()
	if ds, known := d.View().Dataset(in.ds.ID); known && ds.Turn > in.ds.Turn {
		return fmt.Errorf("stage-in of %s: turn %d has begun, this is %d: %w", in.ds.Source, ds.Turn, in.ds.Turn, syscall.ESTALE)
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(in.dir(), name), filepath.Join(d.stageDir(in.ds.ID), name)); err != nil {
			return fmt.Errorf("stage-in: %w", err)
		}
	}
	return nil
}

// settled returns when no turn before the one that this node knows of puts anything in
// its place any more.
func (s *staging) settled() {
	s.placeMu.Lock()
	defer s.placeMu.Unlock()
}

// brings is where a file is that a part has written: in the turn's own directory, unless
// it was a share on this node that has written it.
func (in *intake) brings(node metadata.NodeID, name string) string {
	if node == in.d.job.Self && !in.scanned {
		return filepath.Join(in.d.stageDir(in.ds.ID), name)
	}
	return filepath.Join(in.dir(), name)
}

// has reports whether what a part recorded is here.
func (in *intake) has(i int) bool {
	_, err := os.Stat(in.brings(in.plan.Parts[i].Node, recordsFile(i)))
	return err == nil
}

// inheritTurn takes over what an earlier turn on this node has brought, as far as it is
// there.
func (in *intake) inheritTurn(turn int) {
	if err := os.Rename(in.d.turnDir(in.ds.ID, turn), in.dir()); err != nil {
		in.d.log.WithError(err).WithField("dataset", in.ds.Name).Debug("what was brought of a stage-in is brought again")
	}
}
