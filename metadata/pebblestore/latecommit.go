package pebblestore

import (
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// commitLate does the edits of a transaction that was given up and turns out
// to have been committed, one by one, as far as they are possible after what
// was done meanwhile. An entry whose name is no longer as it was promised gets
// another name beside it, so that no inode is without one. Called with p.mu.
func (s *Store) commitLate(p *preparedTx) error {
	log := s.cfg.Log.WithField("transaction", p.tx.String())
	for len(p.edits) > 0 {
		e := p.edits[0]
		rest := p.edits[1:]
		err := s.editLate(p, e, rest)
		for n := 0; err != nil && e.names() && n < maxConflictNames; n++ {
			log.WithError(err).WithField("name", e.Name).Warn("an entry that comes late gets another name")
			other := edit{Edit: metadata.Edit{Kind: metadata.EditEnter, Dir: e.Dir, Name: conflictName(e.Name, n), Ino: e.Ino, Mode: e.Mode}, at: e.at}
			err = s.editLate(p, other, rest)
		}
		if err != nil {
			log.WithError(err).WithField("inode", e.Ino.String()).Error("a change that comes late is impossible")
		}
		p.edits = rest
	}
	return ioError("intent", s.db.Delete(intentKey(p.tx), commitOptions))
}

// editLate does one edit, in the same step as it is forgotten.
func (s *Store) editLate(p *preparedTx, e edit, rest []edit) error {
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

// names reports whether e gives its inode a name.
func (e edit) names() bool {
	switch e.Kind {
	case metadata.EditEnter, metadata.EditReplace, metadata.EditSwap:
		return true
	}
	return false
}

// maxLateNames is how many other names are tried for an entry.
const maxConflictNames = 100

// lateName is another name for an entry.
func conflictName(name string, n int) string {
	suffix := fmt.Sprintf(".late%d", n)
	return name[:min(len(name), metadata.MaxName-len(suffix))] + suffix
}

// changed is the error of an edit whose entry is not as it was promised.
func changed(e edit, now entry) error {
	return fmt.Errorf("names %v, %v was promised: %w", now.ino, e.old, syscall.ESTALE)
}
