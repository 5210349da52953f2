package pebblestore

import (
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// commitLate applies the edits of a transaction whose locks were released and which was committed
// after all: one by one, as far as later changes permit. If the name of an entry has changed, the
// inode gets a similar name, so that it never is without one. Called with p.mu.
func (s *transactions) commitLate(p *preparedTx) error {
	log := s.cfg.Log.WithField("transaction", p.tx.String())
	for len(p.edits) > 0 {
		e := p.edits[0]
		rest := p.edits[1:]
		err := s.editLate(p, e, rest)
		for n := 0; err != nil && e.names() && n < maxConflictNames; n++ {
			log.WithError(err).WithField("name", e.Name).Warn("late commit of a rename or link: its name is taken by now, so the entry gets a similar one")
			other := edit{Edit: metadata.Edit{Kind: metadata.EditEnter, Dir: e.Dir, Name: conflictName(e.Name, n), Ino: e.Ino, Mode: e.Mode}, at: e.at}
			err = s.editLate(p, other, rest)
		}
		if err != nil {
			log.WithError(err).WithField("inode", e.Ino.String()).Error("late commit of a rename or link: one change is impossible and dropped; run bivouac check")
		}
		p.edits = rest
	}
	return ioError("intent", s.db.Delete(intentKey(p.tx), commitOptions))
}

// editLate applies one edit and removes it from the intent in one batch.
func (s *transactions) editLate(p *preparedTx, e edit, rest []edit) error {
	edits := []edit{e}
	return s.withEdits(edits, func() error {
		t := s.step()
		defer t.close()
		if _, _, err := t.apply(edits, true); err != nil {
			return err
		}
		if len(rest) > 0 {
			t.note(t.b.Set(intentKey(p.tx), appendIntent(nil, rest, true), nil))
		}
		return t.commit()
	})
}

// names reports whether e names its inode.
func (e edit) names() bool {
	switch e.Kind {
	case metadata.EditEnter, metadata.EditReplace, metadata.EditSwap:
		return true
	}
	return false
}

// maxConflictNames is how many names are tried for an entry.
const maxConflictNames = 100

// conflictName returns the n-th alternative name of an entry.
func conflictName(name string, n int) string {
	suffix := fmt.Sprintf(".late%d", n)
	return name[:min(len(name), metadata.MaxName-len(suffix))] + suffix
}

// changed is the error of an edit whose entry is not as it was prepared.
func changed(e edit, now entry) error {
	return fmt.Errorf("names %v, %v when it was prepared: %w", now.ino, e.old, syscall.ESTALE)
}
