package pebblestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bivouacfs/bivouac/metadata"
)

// Census is all that the store has, for a check of the whole tree. It is as
// large as the store.
func (s *Store) Census(ctx context.Context) (metadata.Census, error) {
	c := metadata.Census{
		Self: s.cfg.Self, Inodes: make(map[metadata.Ino]metadata.Known),
		Entries: make(map[metadata.Ino][]metadata.Entry), Orphans: make(map[metadata.Ino]bool),
	}
	err := s.once(func() error {
		snap := s.db.NewSnapshot()
		defer snap.Close()
		it, err := snap.NewIter(&pebble.IterOptions{LowerBound: []byte{prefixInode}, UpperBound: []byte{prefixDecision + 1}})
		if err != nil {
			return ioError("census", err)
		}
		for ok := it.First(); ok && err == nil; ok = it.Next() {
			if err = count(&c, it.Key(), it.Value()); err == nil {
				err = interrupted(ctx)
			}
		}
		return errors.Join(err, ioError("census", it.Close()))
	})
	return c, err
}

// count adds one record to the census.
func count(c *metadata.Census, key, value []byte) error {
	if len(key) < entryNameAt {
		return fmt.Errorf("key %x: %w", key, syscall.EIO)
	}
	ino := metadata.Ino(binary.BigEndian.Uint64(key[1:]))
	switch key[0] {
	case prefixInode:
		n, err := parseInode(ino, value)
		if err != nil {
			return err
		}
		c.Inodes[ino] = metadata.Known{Attr: n.Attr, Parent: n.parent, Name: n.text}
	case prefixEntry:
		e, err := parseEntry(value)
		if err != nil {
			return fmt.Errorf("entry %q of %v: %w", key[entryNameAt:], ino, err)
		}
		c.Entries[ino] = append(c.Entries[ino], metadata.Entry{Name: string(key[entryNameAt:]), Ino: e.ino, Mode: e.mode})
	case prefixOrphan:
		c.Orphans[ino] = true
	default:
		c.Open = append(c.Open, metadata.TxID(ino))
	}
	return nil
}
