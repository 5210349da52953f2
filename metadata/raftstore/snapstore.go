package raftstore

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/hashicorp/raft"
)

const (
	keptSnapshots = 2
	maxSnapshot   = 256 << 20 // bytes; a View of the most nodes is far less
)

// snapStore is Raft's snapshot store in the same Pebble store.
type snapStore struct {
	*store
	mu  sync.Mutex
	seq uint64 // of the last snapshot started; guarded by mu
}

var _ raft.SnapshotStore = (*snapStore)(nil)

func openSnapStore(s *store) (*snapStore, error) {
	ss := &snapStore{store: s}
	err := ss.each(func(seq uint64, _ *raft.SnapshotMeta) { ss.seq = seq })
	return ss, err
}

// each calls fn for every snapshot, by sequence.
func (s *snapStore) each(fn func(seq uint64, m *raft.SnapshotMeta)) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixSnapshotMeta}, UpperBound: []byte{prefixSnapshotMeta + 1}})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		var m raft.SnapshotMeta
		seq := binary.BigEndian.Uint64(it.Key()[1:])
		if err := json.Unmarshal(it.Value(), &m); err != nil {
			_ = it.Close()
			return fmt.Errorf("snapshot %d: %w", seq, err)
		}
		fn(seq, &m)
	}
	return it.Close()
}

// Create starts a snapshot, which exists when the sink is closed.
func (s *snapStore) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, ci uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("snapshot version %d", version)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	return &sink{store: s, seq: s.seq, meta: raft.SnapshotMeta{
		Version: version, ID: fmt.Sprintf("%016x", s.seq), Index: index, Term: term, Configuration: c, ConfigurationIndex: ci,
	}}, nil
}

// List returns the snapshots, the latest first.
func (s *snapStore) List() ([]*raft.SnapshotMeta, error) {
	var all []*raft.SnapshotMeta
	err := s.each(func(_ uint64, m *raft.SnapshotMeta) { all = append(all, m) })
	slices.SortFunc(all, func(a, b *raft.SnapshotMeta) int {
		return cmp.Or(cmp.Compare(b.Term, a.Term), cmp.Compare(b.Index, a.Index), cmp.Compare(b.ID, a.ID))
	})
	return all, err
}

// Open reads a snapshot.
func (s *snapStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	var seq uint64
	if _, err := fmt.Sscanf(id, "%016x", &seq); err != nil {
		return nil, nil, fmt.Errorf("snapshot %q: %w", id, err)
	}
	b, err := s.get(numKey(prefixSnapshotMeta, seq))
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	var m raft.SnapshotMeta
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	view, err := s.get(numKey(prefixSnapshotView, seq))
	if err != nil {
		return nil, nil, fmt.Errorf("snapshot %s: %w", id, err)
	}
	return &m, io.NopCloser(bytes.NewReader(view)), nil
}

// sink buffers a snapshot, which is small.
type sink struct {
	store *snapStore
	seq   uint64
	meta  raft.SnapshotMeta
	buf   bytes.Buffer
	done  bool
}

func (s *sink) ID() string { return s.meta.ID }

func (s *sink) Write(p []byte) (int, error) {
	if s.buf.Len()+len(p) > maxSnapshot {
		return 0, fmt.Errorf("snapshot %s: more than %d bytes", s.meta.ID, maxSnapshot)
	}
	return s.buf.Write(p)
}

// Cancel drops the snapshot.
func (s *sink) Cancel() error {
	s.done = true
	return nil
}

// Close makes the snapshot durable and removes the oldest ones, in one batch.
func (s *sink) Close() error {
	if s.done {
		return nil
	}
	s.done = true
	s.meta.Size = int64(s.buf.Len())
	meta, err := json.Marshal(s.meta)
	if err != nil {
		return err
	}
	b := s.store.db.NewBatch()
	defer b.Close()
	if err := b.Set(numKey(prefixSnapshotMeta, s.seq), meta, nil); err != nil {
		return err
	}
	if err := b.Set(numKey(prefixSnapshotView, s.seq), s.buf.Bytes(), nil); err != nil {
		return err
	}
	if err := s.dropOld(b); err != nil {
		return err
	}
	return b.Commit(pebble.Sync)
}

// dropOld deletes all but the latest snapshots.
func (s *sink) dropOld(b *pebble.Batch) error {
	all, err := s.store.List()
	if err != nil {
		return err
	}
	for _, m := range all[min(keptSnapshots-1, len(all)):] {
		var seq uint64
		if _, err := fmt.Sscanf(m.ID, "%016x", &seq); err != nil {
			return err
		}
		for _, p := range []byte{prefixSnapshotMeta, prefixSnapshotView} {
			if err := b.Delete(numKey(p, seq), nil); err != nil {
				return err
			}
		}
	}
	return nil
}
