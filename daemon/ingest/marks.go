package ingest

import (
	"bufio"
	"errors"
	"io"
	"io/fs"
	"os"
	"strconv"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/ingest"
)

// A participant that reads a tar saves marks, so that the next try of the part on the same node continues from the last
// mark after the daemon was killed. Like the journal of a fill, a mark is not synced: it is valid until the machine
// reboots.

// savedMark is a mark of a part, stored as JSON in markFile.
type savedMark struct {
	Boot string            `json:"boot"`
	Try  uint16            `json:"try"` // the try whose records belong to the mark
	Mark ingest.Checkpoint `json:"mark"`
}

func (p *participant) markFile() string { return p.path("mark-" + strconv.Itoa(p.part)) }

// saveMark returns a function that saves the marks of a try.
func (p *participant) saveMark(part stagein.Part) func(ingest.Checkpoint) {
	path, boot := p.markFile(), dataset.BootID()
	return func(m ingest.Checkpoint) {
		if err := writeJSONFile(path, savedMark{boot, part.Try, m}); err != nil {
			p.log().WithError(err).Warn("mark of a part not saved: if this daemon is killed, more is read again")
		}
	}
}

// earlier is what an earlier try of a part has left on this node. The zero value means nothing.
type earlier struct {
	mark    *ingest.Checkpoint
	records io.Reader
	file    *os.File
}

// kept returns the tries whose inodes were recorded.
func (e *earlier) kept() []stagein.Try {
	if e.mark == nil {
		return nil
	}
	return e.mark.Kept
}

func (e *earlier) close() {
	if e.file != nil {
		_ = e.file.Close() // read only
	}
}

// fromStart starts a part from its beginning, without a mark.
func (p *participant) fromStart() earlier {
	_ = os.Remove(p.markFile()) // there may be none
	return earlier{}
}

// lastTry returns the progress of an earlier try of the part on this node.
func (p *participant) lastTry(part stagein.Part) earlier {
	if part.Try == 0 {
		return p.fromStart()
	}
	e, err := p.earlier(part)
	if err != nil {
		e.close()
		if !errors.Is(err, fs.ErrNotExist) {
			p.log().WithError(err).Warn("mark of a part is damaged: reading the part from its beginning")
		}
		return p.fromStart()
	}
	p.log().WithFields(map[string]any{"part": p.part, "at": e.mark.At, "archives": e.mark.Next}).Info("part of a stage-in resumes from its last mark")
	return e
}

func (p *participant) earlier(part stagein.Part) (e earlier, err error) {
	b, err := os.ReadFile(p.markFile())
	var m savedMark
	if err == nil {
		err = node.DecodeJSON(b, &m)
	}
	if err == nil && (m.Boot != dataset.BootID() || m.Try >= part.Try) {
		err = fs.ErrNotExist
	}
	if err == nil {
		e.file, err = os.Open(p.tryFile(m.Try))
	}
	if err != nil {
		return e, err
	}
	e.mark, e.records = &m.Mark, bufio.NewReaderSize(e.file, 1<<20)
	return e, nil
}
