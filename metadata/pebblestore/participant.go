package pebblestore

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

var _ metadata.Participant = (*Store)(nil)

// Prepare implements metadata.Participant.
func (s *transactions) Prepare(_ context.Context, tx metadata.TxID, edits []metadata.Edit) (metadata.Vote, error) {
	if tx.Home() == s.cfg.Self {
		return metadata.Vote{}, fmt.Errorf("transaction %v is this node's own: %w", tx, syscall.EINVAL)
	}
	p := newPreparedTx(tx, s.cfg.Now())
	var err error
	if p.edits, err = s.takeEdits(edits); err != nil {
		return metadata.Vote{}, err
	}
	var v metadata.Vote
	err = s.once(func() error {
		return s.withEdits(p.edits, func() (err error) {
			if v, err = s.prepareEdits(p, p.edits); err != nil {
				return err
			}
			if err = s.set(intentKey(tx), appendIntent(nil, p.edits, false)); err != nil {
				s.txLocks.end(p)
				return ioError("intent", err)
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			p.recorded = true
			return nil
		})
	})
	return v, err
}

// prepareEdits does a dry run of the edits for p and takes their locks. The caller holds their stripes.
func (s *transactions) prepareEdits(p *preparedTx, edits []edit) (metadata.Vote, error) {
	v, wants, err := s.dryRun(edits, false)
	if err != nil {
		// The cause may be a change that another transaction is about to make.
		if by := s.txLocks.blockedBy(p, wants); by != nil {
			return metadata.Vote{}, &blocked{by}
		}
		return metadata.Vote{}, err
	}
	return v, s.txLocks.acquire(p, wants)
}

// Commit implements metadata.Participant. See commitLate for a transaction that was given up.
func (s *transactions) Commit(_ context.Context, tx metadata.TxID) error {
	return s.finish(tx, func(p *preparedTx) error {
		if p.gaveUp.Load() {
			return s.commitLate(p)
		}
		return s.withEdits(p.edits, func() error {
			t := s.step()
			defer t.close()
			if _, _, err := t.apply(p.edits, true); err != nil {
				return err
			}
			t.note(t.b.Delete(intentKey(tx), nil))
			return t.commit()
		})
	})
}

// Abort implements metadata.Participant.
func (s *transactions) Abort(_ context.Context, tx metadata.TxID) error {
	return s.finish(tx, func(*preparedTx) error {
		return ioError("intent", s.remove(intentKey(tx)))
	})
}

// GiveUp releases the locks of tx, because its coordinator is not expected back, but keeps its edits: if the
// coordinator returns and has committed, Commit applies all edits that are still possible.
func (s *transactions) GiveUp(tx metadata.TxID) error {
	return s.once(func() error {
		p := s.txLocks.get(tx)
		if p == nil {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ended || p.gaveUp.Load() {
			return nil
		}
		if err := s.set(intentKey(tx), appendIntent(nil, p.edits, true)); err != nil {
			return ioError("intent", err)
		}
		p.gaveUp.Store(true)
		s.txLocks.release(p)
		return nil
	})
}

// finish ends a transaction in which this store is a participant, by one call of do. It ignores a transaction whose
// intent is still being written: the intent could reach the disk after its removal. Such a transaction is in doubt
// later.
func (s *transactions) finish(tx metadata.TxID, do func(*preparedTx) error) error {
	return s.once(func() error {
		p := s.txLocks.get(tx)
		if p == nil || tx.Home() == s.cfg.Self {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.ended || !p.recorded {
			return nil
		}
		if err := do(p); err != nil {
			return fmt.Errorf("transaction %v: %w", tx, err)
		}
		p.ended = true
		s.txLocks.end(p)
		return nil
	})
}

// Touched returns the leased objects that the commit of tx changes here: directories and their entries.
func (s *transactions) Touched(tx metadata.TxID) []metadata.LeaseKey {
	p := s.txLocks.get(tx)
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var keys []metadata.LeaseKey
	for _, e := range p.edits {
		if e.Dir != 0 && e.Kind != metadata.EditKeep {
			keys = append(keys, metadata.LeaseKey{Ino: e.Dir}, metadata.LeaseKey{Ino: e.Dir, Name: e.Name})
		}
		for _, ino := range []metadata.Ino{e.Ino, e.old} {
			if ino != 0 && s.here(ino) {
				keys = append(keys, metadata.LeaseKey{Ino: ino})
			}
		}
	}
	return keys
}

// InDoubt returns the prepared transactions whose outcome is unknown.
func (s *transactions) InDoubt() []metadata.InDoubt {
	var all []metadata.InDoubt
	for _, p := range s.txLocks.all() {
		if p.tx.Home() == s.cfg.Self {
			continue
		}
		p.mu.Lock()
		if p.recorded && !p.ended {
			all = append(all, metadata.InDoubt{Tx: p.tx, Since: p.since, GaveUp: p.gaveUp.Load()})
		}
		p.mu.Unlock()
	}
	return all
}

// loadIntents takes the locks of the intents of an earlier run.
func (s *transactions) loadIntents() error {
	return s.scanTx(prefixIntent, func(tx metadata.TxID, v []byte) error {
		edits, late, err := parseIntent(v)
		if err != nil {
			return fmt.Errorf("transaction %v: %w", tx, err)
		}
		p := newPreparedTx(tx, time.Time{})
		p.edits, p.recorded = edits, true
		p.gaveUp.Store(late)
		s.txLocks.add(p)
		if late {
			s.txLocks.release(p)
			return nil
		}
		_, wants, err := s.dryRun(edits, true)
		if err == nil {
			err = s.txLocks.acquire(p, wants)
		}
		if err != nil { // retried at its Commit
			s.cfg.Log.WithError(err).WithField("transaction", tx.String()).Error("prepared transaction of the last run cannot take its locks: it is tried again when its outcome is known")
		}
		return nil
	})
}

// scanTx calls fn with each transaction record under prefix.
func (s *transactions) scanTx(prefix byte, fn func(metadata.TxID, []byte) error) error {
	return scanInos(s.db, "transactions", prefix, func(tx metadata.Ino, v []byte) error { return fn(metadata.TxID(tx), v) })
}

// commitLate applies the edits of a transaction that was committed although its locks were released: one by one, as far
// as later changes permit. If an entry's name is taken, the inode gets a similar name, so that it always has one. The
// caller holds p.mu.
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
	return ioError("intent", s.remove(intentKey(p.tx)))
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

// maxConflictNames limits how many names are tried for an entry.
const maxConflictNames = 100

// conflictName returns the n-th alternative name of an entry.
func conflictName(name string, n int) string {
	suffix := fmt.Sprintf(".late%d", n)
	return name[:min(len(name), metadata.MaxName-len(suffix))] + suffix
}

// changed returns the error for an edit whose entry is no longer in its prepared state.
func changed(e edit, now entry) error {
	return fmt.Errorf("names %v, %v when it was prepared: %w", now.ino, e.old, syscall.ESTALE)
}
