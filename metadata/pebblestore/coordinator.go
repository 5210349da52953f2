package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Begin starts a transaction that this node coordinates. Decide, Release or the end of the daemon ends it.
func (s *transactions) Begin() (metadata.TxID, error) {
	var tx metadata.TxID
	err := s.once(func() error {
		ino, err := s.newIno()
		if err != nil {
			return err
		}
		tx = metadata.TxID(ino)
		s.txLocks.add(newPreparedTx(tx, s.cfg.Now()))
		return nil
	})
	return tx, err
}

// Hold is Prepare on the coordinator's side: the locks are in memory only, and several calls may take them. The first
// call waits for conflicting transactions; later ones return EAGAIN instead, because others could be waiting for this
// one. It returns ESTALE if an entry is not in the state that an edit expects.
func (s *transactions) Hold(ctx context.Context, tx metadata.TxID, asked []metadata.Edit) (metadata.Vote, error) {
	p := s.txLocks.get(tx)
	if p == nil || tx.Home() != s.cfg.Self {
		return metadata.Vote{}, fmt.Errorf("transaction %v has ended: %w", tx, syscall.EINVAL)
	}
	edits, err := s.takeEdits(asked)
	if err != nil {
		return metadata.Vote{}, err
	}
	var v metadata.Vote
	attempt := func() error {
		return s.withEdits(edits, func() (err error) {
			v, err = s.prepareEdits(p, edits)
			return err
		})
	}
	p.mu.Lock()
	first := len(p.edits) == 0
	p.mu.Unlock()
	if first {
		err = s.retry(ctx, attempt)
	} else {
		err = s.once(attempt)
	}
	if err != nil {
		return metadata.Vote{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.edits = append(p.edits, edits...)
	return v, nil
}

// Decide commits the transaction: one batch applies the held edits and records the decision for the other participants.
// After an error the transaction is still undecided.
func (s *transactions) Decide(tx metadata.TxID, others []metadata.NodeID) error {
	return s.once(func() error {
		p := s.txLocks.get(tx)
		if p == nil || tx.Home() != s.cfg.Self {
			return fmt.Errorf("transaction %v has ended: %w", tx, syscall.EINVAL)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		err := s.withEdits(p.edits, func() error {
			t := s.step()
			defer t.close()
			if _, _, err := t.apply(p.edits, true); err != nil {
				return err
			}
			if len(others) > 0 {
				t.note(t.b.Set(decisionKey(tx), appendDecision(nil, others), nil))
			}
			return t.commit()
		})
		if err == nil {
			p.ended = true
			s.txLocks.end(p)
		}
		return err
	})
}

// Release aborts the transaction, if it is undecided.
func (s *transactions) Release(tx metadata.TxID) {
	if p := s.txLocks.get(tx); p != nil && tx.Home() == s.cfg.Self {
		s.txLocks.end(p)
	}
}

// Outcome returns the outcome of a transaction that this node coordinates.
func (s *transactions) Outcome(_ context.Context, tx metadata.TxID) (metadata.Outcome, error) {
	if tx.Home() != s.cfg.Self {
		return 0, fmt.Errorf("transaction %v is that of another node: %w", tx, syscall.EINVAL)
	}
	var o metadata.Outcome
	err := s.once(func() error {
		if s.txLocks.get(tx) != nil {
			o = metadata.Undecided
			return nil
		}
		_, err := s.get(decisionKey(tx))
		switch {
		case err == nil:
			o = metadata.Committed
		case errors.Is(err, syscall.ENOENT):
			o, err = metadata.Aborted, nil
		}
		return err
	})
	return o, err
}

// Forget removes a decision that all participants have executed. The decision may reappear after a crash, which does no
// harm.
func (s *transactions) Forget(tx metadata.TxID) error {
	return s.once(func() error {
		return ioError("decision", s.remove(decisionKey(tx)))
	})
}

// Decisions returns the recorded decisions with their participants.
func (s *transactions) Decisions() (map[metadata.TxID][]metadata.NodeID, error) {
	all := make(map[metadata.TxID][]metadata.NodeID)
	err := s.once(func() error {
		return s.scanTx(prefixDecision, func(tx metadata.TxID, v []byte) error {
			others, err := parseDecision(v)
			if err != nil {
				return fmt.Errorf("transaction %v: %w", tx, err)
			}
			all[tx] = others
			return nil
		})
	})
	return all, err
}

// Ancestor walks up from the directory from to the first directory that is stop, is the root or has another home. It
// returns EAGAIN if a prepared transaction moves one of them.
func (s *transactions) Ancestor(_ context.Context, from, stop metadata.Ino) (metadata.Ino, error) {
	err := s.once(func() error {
		for range 1 << 16 {
			if from == stop || from == metadata.RootIno || !s.here(from) {
				return nil
			}
			if err := s.txLocks.checkFree(from, ""); err != nil {
				return err
			}
			n, err := s.inode(from)
			if err != nil {
				return err
			}
			if !n.isDir() || n.parent == 0 {
				return fmt.Errorf("inode %v has no directory above it: %w", from, syscall.EIO)
			}
			from = n.parent
		}
		return fmt.Errorf("tree above directory %v: %w", from, syscall.ELOOP)
	})
	return from, err
}
