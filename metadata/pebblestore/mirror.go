package pebblestore

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/batchrepr"
)

// Mirror receives each batch of changes, in Pebble's encoding, before the store applies it, and must not keep it after
// it returns. It returns once the home's partner has the batch; the store calls done after it has applied it. If Mirror
// fails, the store changes nothing.
type Mirror func(changes []byte) (done func(), err error)

// SetMirror sets the mirror. When it returns, all earlier batches are applied.
func (s *core) SetMirror(m Mirror) {
	s.mirrorMu.Lock()
	defer s.mirrorMu.Unlock()
	s.mirror = m
}

// Partner returns the value that SetPartner recorded; nil if there is none.
func (s *core) Partner() ([]byte, error) {
	v, err := s.get(keyPartner)
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	return v, err
}

// SetPartner records v on the disk. The record is not mirrored.
func (s *core) SetPartner(v []byte) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	err := s.db.Set(keyPartner, v, commitOptions)
	if err == nil {
		err = s.wal.flush(s.db)
	}
	return ioError("partner", err)
}

// AllRecords calls fn with all records that a copy needs, in batches of about size bytes. They are a snapshot taken at
// the call.
func (s *core) AllRecords(size int, fn func(changes []byte) error) error {
	if err := s.begin(); err != nil {
		return err
	}
	snap := s.db.NewSnapshot()
	s.end()
	defer snap.Close()
	b := s.db.NewBatch()
	defer b.Close()
	err := scan(snap, "records", nil, []byte{prefixTable}, func(k, v []byte) (more bool, err error) {
		if !bytes.Equal(k, keyPartner) && !bytes.Equal(k, keyStream) {
			err = b.Set(k, v, nil)
		}
		if err == nil && b.Len() >= size {
			err = fn(b.Repr())
			b.Reset()
		}
		return true, err
	})
	if err != nil {
		return err
	}
	return fn(b.Repr())
}

// Copy is a copy of another node's records. Open can later open it as a Store.
type Copy struct{ *core }

const (
	copyCache = 1 << 20 // enough for a store that is only written to
	// copyMemTable is small because Pebble preallocates each log to this size, and keeps some for reuse.
	copyMemTable = 4 << 20
)

// OpenCopy opens the copy in cfg.Dir, and creates it if there is none.
func OpenCopy(cfg Config) (*Copy, error) {
	cfg.CacheSize = copyCache
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c := &core{cfg: cfg, wal: newWALFS(cfg.FS, false)}
	if err := cfg.FS.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("copy of a metadata store: %w", err)
	}
	o := c.options()
	o.MemTableSize = copyMemTable
	var err error
	if c.db, err = pebble.Open(cfg.Dir, o); err != nil {
		return nil, fmt.Errorf("copy of a metadata store: %w", err)
	}
	return &Copy{c}, nil
}

// Damaged reports whether err means that the records of a store are damaged, so that a retry would fail likewise.
func Damaged(err error) bool { return pebble.IsCorruptionError(err) }

// State returns the state that the last Apply recorded; nil if there was none.
func (c *Copy) State() ([]byte, error) {
	v, err := c.get(keyStream)
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	return v, err
}

// Apply applies batches of changes, in order, and records state, all in one step.
func (c *Copy) Apply(batches [][]byte, state []byte) error {
	if err := c.begin(); err != nil {
		return err
	}
	defer c.end()
	b := c.db.NewBatch()
	defer b.Close()
	for _, changes := range batches {
		if err := addChanges(b, changes); err != nil {
			return fmt.Errorf("changes of another home: %w", err)
		}
	}
	if err := b.Set(keyStream, state, nil); err != nil {
		return err
	}
	return ioError("copy of a metadata store", c.db.Apply(b, commitOptions))
}

// Sync makes all applied batches durable on the disk.
func (c *Copy) Sync() error { return ioError("copy of a metadata store", c.wal.flush(c.db)) }

// addChanges adds changes, in Pebble's encoding, to b.
func addChanges(b *pebble.Batch, changes []byte) error {
	if len(changes) < batchrepr.HeaderLen {
		return fmt.Errorf("batch of %d bytes: %w", len(changes), syscall.EINVAL)
	}
	for r := batchrepr.Read(changes); ; {
		kind, key, value, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		switch kind {
		case pebble.InternalKeyKindSet:
			err = b.Set(key, value, nil)
		case pebble.InternalKeyKindDelete:
			err = b.Delete(key, nil)
		case pebble.InternalKeyKindRangeDelete:
			err = b.DeleteRange(key, value, nil)
		default:
			err = fmt.Errorf("change of kind %v: %w", kind, syscall.EINVAL)
		}
		if err != nil {
			return err
		}
	}
}
