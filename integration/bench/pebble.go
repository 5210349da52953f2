package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"strconv"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// bare is a Pebble store with only the records of an empty file: no locks, no encoding, no commit that waits for the
// log.
type bare struct {
	db    *pebble.DB
	inode []byte // a value of an inode's length
	entry []byte // and of an entry's
	key   []byte
	dir   []byte // key of the directory's inode
}

func pebbleWorker(op, dir, count string) error {
	n, err := strconv.Atoi(count)
	if err != nil {
		return err
	}
	o := &pebble.Options{MemTableSize: 16 << 20, CacheSize: 64 << 20, FormatMajorVersion: pebble.FormatColumnarBlocks, Logger: quiet{}}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	db, err := pebble.Open(dir, o)
	if err != nil {
		return err
	}
	b := &bare{db: db, inode: make([]byte, 45), entry: make([]byte, 11), dir: make([]byte, 9)}
	do := map[string]func(i int) error{"create": b.create, "stat": b.stat, "unlink": b.unlink}[op]
	if do == nil {
		return fmt.Errorf("unknown work %q: %w", op, syscall.EINVAL)
	}
	if op != "create" {
		err = times(n, b.create)
	}
	return errors.Join(err, timed(func() error { return times(n, do) }), db.Close())
}

func times(n int, do func(i int) error) error {
	for i := range n {
		if err := do(i); err != nil {
			return err
		}
	}
	return nil
}

func (b *bare) inodeKey(i int) []byte {
	b.key = binary.BigEndian.AppendUint64(append(b.key[:0], 2), uint64(i))
	return b.key
}

func (b *bare) entryKey(i int) []byte {
	b.key = binary.BigEndian.AppendUint64(append(b.key[:0], 3), 1)
	b.key = strconv.AppendInt(append(b.key, "p0-"...), int64(i), 10)
	return b.key
}

// create checks that the name is free, and writes the inode, the entry and the directory.
func (b *bare) create(i int) error {
	if err := b.get(b.entryKey(i)); !errors.Is(err, pebble.ErrNotFound) {
		return fmt.Errorf("entry %d: %w", i, errors.Join(err, syscall.EEXIST))
	}
	t := b.db.NewBatch()
	defer t.Close()
	err := errors.Join(t.Set(b.inodeKey(i), b.inode, nil), t.Set(b.entryKey(i), b.entry, nil), t.Set(b.dir, b.inode, nil))
	return errors.Join(err, t.Commit(pebble.NoSync))
}

func (b *bare) stat(i int) error {
	return errors.Join(b.get(b.entryKey(i)), b.get(b.inodeKey(i)))
}

func (b *bare) unlink(i int) error {
	t := b.db.NewBatch()
	defer t.Close()
	err := errors.Join(b.stat(i), t.Delete(b.inodeKey(i), nil), t.Delete(b.entryKey(i), nil), t.Set(b.dir, b.inode, nil))
	return errors.Join(err, t.Commit(pebble.NoSync))
}

func (b *bare) get(key []byte) error {
	_, c, err := b.db.Get(key)
	if err != nil {
		return err
	}
	return c.Close()
}

// quiet discards Pebble's log messages.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(format string, args ...any) { log.Printf(format, args...) }
func (quiet) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }

var _ pebble.Logger = quiet{}
