package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"github.com/sirupsen/logrus"
)

const (
	prefixLog          = 'l'
	prefixStable       = 's'
	prefixSnapshotMeta = 'm'
	prefixSnapshotView = 'v'

	logVersion = 1
	logHeader  = 1 + 8 + 1 + 8 + 4
)

// errNotFound has the text that hashicorp/raft expects for a missing key.
var errNotFound = errors.New("not found")

const (
	cacheSize    = 1 << 20
	memTableSize = 1 << 20
)

// Memory bounds the memory of a group's store.
const Memory = cacheSize + 2*memTableSize

// store is Raft's log, stable store and snapshots.
type store struct{ db *pebble.DB }

var (
	_ raft.LogStore    = (*store)(nil)
	_ raft.StableStore = (*store)(nil)
)

func openStore(dir string, fs vfs.FS, log *logrus.Entry) (*store, error) {
	if fs == nil {
		fs = vfs.Default
	}
	db, err := pebble.Open(dir, &pebble.Options{
		FS:                 fs,
		CacheSize:          cacheSize,
		MemTableSize:       memTableSize,
		MaxOpenFiles:       64,
		FormatMajorVersion: pebble.FormatTableFormatV6,
		Logger:             pebbleLogger{log},
	})
	if err != nil {
		return nil, fmt.Errorf("raft store %s: %w", dir, err)
	}
	return &store{db}, nil
}

func (s *store) close() error { return s.db.Close() }

func numKey(prefix byte, n uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefix}, n)
}

// keyAfter returns the first key behind numKey(prefix, n).
func keyAfter(prefix byte, n uint64) []byte {
	if n == math.MaxUint64 {
		return []byte{prefix + 1}
	}
	return numKey(prefix, n+1)
}

// get returns a copy of the value at key, or errNotFound.
func (s *store) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, errNotFound
	}
	if err != nil {
		return nil, err
	}
	v = bytes.Clone(v)
	return v, closer.Close()
}

// FirstIndex returns the index of the oldest log entry, 0 if there is none.
func (s *store) FirstIndex() (uint64, error) { return s.edge((*pebble.Iterator).First) }

// LastIndex returns the index of the newest log entry, 0 if there is none.
func (s *store) LastIndex() (uint64, error) { return s.edge((*pebble.Iterator).Last) }

func (s *store) edge(move func(*pebble.Iterator) bool) (uint64, error) {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixLog}, UpperBound: []byte{prefixLog + 1}})
	if err != nil {
		return 0, err
	}
	var index uint64
	if move(it) {
		index = binary.BigEndian.Uint64(it.Key()[1:])
	}
	return index, it.Close()
}

// GetLog reads the log entry at index; raft.ErrLogNotFound if there is none.
func (s *store) GetLog(index uint64, l *raft.Log) error {
	b, err := s.get(numKey(prefixLog, index))
	if err == errNotFound {
		return raft.ErrLogNotFound
	}
	if err != nil {
		return err
	}
	return parseLog(b, index, l)
}

// StoreLog stores a log entry.
func (s *store) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs stores log entries, all or none, and returns when they are on the disk.
func (s *store) StoreLogs(ls []*raft.Log) error {
	b := s.db.NewBatch()
	defer b.Close()
	for _, l := range ls {
		if err := b.Set(numKey(prefixLog, l.Index), appendLog(nil, l), nil); err != nil {
			return err
		}
	}
	return b.Commit(pebble.Sync)
}

// DeleteRange deletes the log entries from first to last, both included.
func (s *store) DeleteRange(first, last uint64) error {
	if first > last {
		return nil
	}
	return s.db.DeleteRange(numKey(prefixLog, first), keyAfter(prefixLog, last), pebble.Sync)
}

func appendLog(b []byte, l *raft.Log) []byte {
	var appended int64
	if !l.AppendedAt.IsZero() {
		appended = l.AppendedAt.UnixNano()
	}
	b = append(b, logVersion)
	b = binary.BigEndian.AppendUint64(b, l.Term)
	b = append(b, byte(l.Type))
	b = binary.BigEndian.AppendUint64(b, uint64(appended))
	b = binary.BigEndian.AppendUint32(b, uint32(len(l.Extensions)))
	b = append(b, l.Extensions...)
	return append(b, l.Data...)
}

// parseLog decodes the entry b into l, which refers to b.
func parseLog(b []byte, index uint64, l *raft.Log) error {
	if len(b) < logHeader || b[0] != logVersion {
		return fmt.Errorf("log entry %d: %d bytes that are none", index, len(b))
	}
	ext := binary.BigEndian.Uint32(b[18:])
	rest := b[logHeader:]
	if uint64(ext) > uint64(len(rest)) {
		return fmt.Errorf("log entry %d: %d bytes of extensions in %d", index, ext, len(rest))
	}
	*l = raft.Log{
		Index: index, Term: binary.BigEndian.Uint64(b[1:]), Type: raft.LogType(b[9]),
		Extensions: rest[:ext:ext], Data: rest[ext:],
	}
	if ext == 0 {
		l.Extensions = nil
	}
	if at := int64(binary.BigEndian.Uint64(b[10:])); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	return nil
}

func stableKey(key []byte) []byte { return append([]byte{prefixStable}, key...) }

// Set stores a value, and returns when it is on the disk.
func (s *store) Set(key, val []byte) error { return s.db.Set(stableKey(key), val, pebble.Sync) }

// Get returns the value at key; errNotFound if there is none.
func (s *store) Get(key []byte) ([]byte, error) { return s.get(stableKey(key)) }

// SetUint64 stores an integer.
func (s *store) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

// GetUint64 returns the integer at key; errNotFound if there is none.
func (s *store) GetUint64(key []byte) (uint64, error) {
	b, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%s has %d bytes, want 8", key, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}
