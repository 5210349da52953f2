package daemon

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// forsake has what lost nodes had of compressed tars stay in these, if the others have no room
// for it: they were filled while those were there.
func (in *intake) forsake() error {
	m := in.d.View().Map
	in.plan.Origins.Gone = nil
	lost := func(id metadata.NodeID) bool { n, _ := m.Node(id); return n.State == cluster.Down }
	if !in.plan.Spills || !slices.ContainsFunc(in.plan.Map.Up(), lost) {
		return nil
	}
	var sum stagein.Forsaken
	for i := range in.plan.Parts {
		f, err := in.forsakePart(i, lost)
		if err != nil {
			return fmt.Errorf("stage-in: %w", err)
		}
		sum.Bytes, sum.Wide = sum.Bytes+f.Bytes, append(sum.Wide, f.Wide...)
	}
	var free []int64
	known := in.d.freeSpace()
	for _, id := range m.Up() {
		n, _ := known(id)
		free = append(free, n)
	}
	if sum.Bytes == 0 || stagein.HasRoom(sum.Bytes, free) {
		return nil
	}
	in.forsaken, in.plan.Origins.Spills, in.plan.Origins.Gone = true, true, sum.Wide
	in.d.log.WithFields(map[string]any{"dataset": in.ds.Name, "bytes": sum.Bytes}).Warn("what lost nodes had stays in the source: the others have no room for it")
	return nil
}

// forsakePart writes what the records of a part would be.
func (in *intake) forsakePart(i int, lost func(metadata.NodeID) bool) (all stagein.Forsaken, err error) {
	from, err := os.Open(in.brings(in.plan.Parts[i].Node, recordsFile(i)))
	if err != nil {
		return all, err
	}
	defer from.Close() // read only
	to, err := os.Create(in.fewer(i))
	if err != nil {
		return all, err
	}
	w := bufio.NewWriterSize(to, 1<<20)
	all, err = in.plan.Origins.Forsake(lost, in.plan.Map.Order, bufio.NewReaderSize(from, 1<<20), w)
	return all, errors.Join(err, w.Flush(), to.Close())
}

// fewer is where the records of a part are that say what was forsaken.
func (in *intake) fewer(i int) string { return filepath.Join(in.dir(), recordsFile(i)+".fewer") }

// recorded is where the records of a part are.
func (in *intake) recorded(i int) string {
	if in.forsaken {
		return in.fewer(i)
	}
	return in.brings(in.plan.Parts[i].Node, recordsFile(i))
}
