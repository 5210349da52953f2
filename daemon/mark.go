package daemon

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/bivouacfs/bivouac/daemon/node"
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

func (d *Daemon) pointsPath(ds metadata.DatasetID, part int) string {
	return filepath.Join(d.stageDir(ds), pointsFile(part))
}

// earlier is what an earlier try of a part has left on this node. The zero one is nothing.
type earlier struct {
	mark    *stagein.Mark
	records io.Reader
	files   []*os.File
}

// kept is the tries whose inodes were recorded.
func (e *earlier) kept() []stagein.Try {
	if e.mark == nil {
		return nil
	}
	return e.mark.Kept
}

func (e *earlier) close() {
	for _, f := range e.files {
		_ = f.Close() // read only
	}
}

// open opens what a try has written to a file.
func (e *earlier) open(path string, try uint16) (io.Reader, error) {
	f, err := os.Open(tryFile(path, try))
	if err != nil {
		return nil, err
	}
	e.files = append(e.files, f)
	return bufio.NewReaderSize(f, 1<<20), nil
}

// anew begins a part from its beginning: no mark counts.
func (s *share) anew() earlier {
	for _, path := range []string{s.d.markFile(s.plan.Dataset, s.part), s.d.pointsPath(s.plan.Dataset, s.part)} {
		_ = os.Remove(path) // there may be none
	}
	return earlier{}
}

// lastTry is where an earlier try of a part has come to on this node; nothing, if there is nothing that counts.
func (s *share) lastTry(part stagein.Part) earlier {
	if part.Try == 0 {
		return s.anew() // of no mark that there is
	}
	log := s.d.log.WithField("dataset", s.plan.Name)
	e, err := s.earlier(part)
	if err != nil {
		e.close()
		if !errors.Is(err, fs.ErrNotExist) {
			log.WithError(err).Warn("a part of a stage-in is read from its beginning")
		}
		return s.anew()
	}
	log.WithFields(map[string]any{"part": s.part, "at": e.mark.At, "archives": e.mark.Next}).Info("a part of the stage-in goes on from its last mark")
	return e
}

func (s *share) earlier(part stagein.Part) (e earlier, err error) {
	b, err := os.ReadFile(s.d.markFile(s.plan.Dataset, s.part))
	var m marked
	if err == nil {
		err = node.DecodeJSON(b, &m)
	}
	if err == nil && (m.Boot != bootID() || m.Try >= part.Try) {
		err = fs.ErrNotExist
	}
	if e.mark = &m.Mark; err == nil {
		e.records, err = e.open(filepath.Join(s.d.stageDir(s.plan.Dataset), recordsFile(s.part)), m.Try)
	}
	return e, err
}
