package daemon

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// A share of a tar writes down now and then how far it is, so that the next try of its
// part goes on there if it is on the same node: when the daemon was killed. Nothing is
// synced, as in the journal of a fill, so that it counts until the machine is booted.

// marked is the mark of a part, as JSON in markFile.
type marked struct {
	Boot string       `json:"boot"`
	Try  uint16       `json:"try"` // whose records go with it
	Mark stagein.Mark `json:"mark"`
}

func (d *Daemon) markFile(ds metadata.DatasetID, part int) string {
	return filepath.Join(d.stageDir(ds), "mark-"+strconv.Itoa(part))
}

// mark is told of the marks of a try. One that cannot be written is as good as none.
func (s *share) mark(part stagein.Part) func(stagein.Mark) {
	path, boot := s.d.markFile(s.plan.Dataset, s.part), bootID()
	return func(m stagein.Mark) {
		if err := writeJSONFile(path, marked{boot, part.Try, m}); err != nil {
			s.d.log.WithError(err).WithField("dataset", s.plan.Name).Warn("if this daemon is killed, what it has read is read again")
		}
	}
}

// before is the records before a mark.
type before struct {
	io.Reader
	f *os.File
}

func (b before) Close() error { return b.f.Close() }

// lastMark is where an earlier try of a part has come to on this node, and the records
// before it; nil if there is nothing that counts.
func (s *share) lastMark(part stagein.Part) (*stagein.Mark, io.ReadCloser) {
	if part.Try == 0 {
		return nil, nil // of no mark that there is
	}
	log := s.d.log.WithField("dataset", s.plan.Name)
	b, err := os.ReadFile(s.d.markFile(s.plan.Dataset, s.part))
	var m marked
	if err == nil {
		err = decodeJSON(b, &m)
	}
	if err == nil && (m.Boot != bootID() || m.Try >= part.Try) {
		err = fs.ErrNotExist
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(tryFile(filepath.Join(s.d.stageDir(s.plan.Dataset), recordsFile(s.part)), m.Try))
	}
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.WithError(err).Warn("a part of a stage-in is read from its beginning")
		}
		return nil, nil
	}
	log.WithFields(map[string]any{"part": s.part, "at": m.Mark.At}).Info("a part of a stage-in goes on")
	return &m.Mark, before{bufio.NewReaderSize(f, 1<<20), f}
}
