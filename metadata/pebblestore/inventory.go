package pebblestore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Record is a raw record of the live tree.
type Record struct {
	Key   []byte `json:"k"`
	Value []byte `json:"v"`
}

// Inventory returns all records, for a check of the whole tree. It is as large as the store.
func (s *Store) Inventory(ctx context.Context) (metadata.Inventory, error) {
	c := NewInventoryBuilder(s.cfg.Self)
	err := s.eachRecord(ctx, nil, func(r Record) (bool, error) { return true, c.Add(r) })
	return c.Inventory(), err
}

// Records returns the records of the live tree with keys after the key after, up to limit bytes or a little more; no
// records mean the end. Concurrent changes may be missing.
func (s *Store) Records(ctx context.Context, after []byte, limit int) ([]Record, error) {
	var out []Record
	err := s.eachRecord(ctx, after, func(r Record) (bool, error) {
		out = append(out, Record{bytes.Clone(r.Key), bytes.Clone(r.Value)})
		limit -= len(r.Key) + len(r.Value)
		return limit > 0, nil
	})
	return out, err
}

// Missing returns those of the inodes inos of this home that once existed and no longer do. It omits numbers that have
// not been handed out.
func (s *Store) Missing(inos []metadata.Ino) ([]metadata.Ino, error) {
	var gone []metadata.Ino
	err := s.once(func() error {
		for _, ino := range inos {
			if !s.here(ino) || ino.Counter() >= s.counter.peek() {
				continue
			}
			_, err := s.inode(ino)
			switch {
			case errors.Is(err, syscall.ENOENT):
				gone = append(gone, ino)
			case err != nil:
				return err
			}
		}
		return nil
	})
	return gone, err
}

// eachRecord calls fn with the records of the live tree in one snapshot, until fn returns false. A record is valid
// until fn returns.
func (s *Store) eachRecord(ctx context.Context, after []byte, fn func(Record) (bool, error)) error {
	lower := []byte{prefixInode}
	if bytes.Compare(after, lower) > 0 {
		lower = append(bytes.Clone(after), 0)
	}
	return s.once(func() error {
		snap := s.db.NewSnapshot()
		defer snap.Close()
		return scan(snap, "inventory", lower, []byte{prefixShard + 1}, func(k, v []byte) (bool, error) {
			more, err := fn(Record{k, v})
			if err == nil {
				err = interrupted(ctx)
			}
			return more, err
		})
	})
}

// InventoryBuilder builds an inventory from the records of a home, which another node may have sent.
type InventoryBuilder struct {
	c       metadata.Inventory
	filling []metadata.Ino
}

// NewInventoryBuilder returns a builder with an empty inventory of the home self.
func NewInventoryBuilder(self metadata.NodeID) *InventoryBuilder {
	return &InventoryBuilder{c: metadata.Inventory{
		Self: self, Inodes: make(map[metadata.Ino]metadata.InventoryInode),
		Entries: make(map[metadata.Ino][]metadata.Entry), Orphans: make(map[metadata.Ino]bool),
	}}
}

// Add adds a record. It returns EIO for a damaged one.
func (c *InventoryBuilder) Add(r Record) error {
	if len(r.Key) < entryNameAt {
		return fmt.Errorf("key %x: %w", r.Key, syscall.EIO)
	}
	ino := metadata.Ino(binary.BigEndian.Uint64(r.Key[1:]))
	switch r.Key[0] {
	case prefixInode:
		n, err := parseInode(ino, r.Value)
		if err != nil {
			return err
		}
		c.c.Inodes[ino] = metadata.InventoryInode{Attr: n.Attr, Parent: n.parent, Name: n.text}
	case prefixEntry:
		e, err := parseEntry(r.Value)
		if err != nil {
			return fmt.Errorf("entry %q of %v: %w", r.Key[entryNameAt:], ino, err)
		}
		c.c.Entries[ino] = append(c.c.Entries[ino], metadata.Entry{Name: string(r.Key[entryNameAt:]), Ino: e.ino, Mode: e.mode})
	case prefixOrphan:
		c.c.Orphans[ino] = true
	case prefixIntent, prefixDecision:
		c.c.Open = append(c.c.Open, metadata.TxID(ino))
	case prefixShard:
		d, err := parseShardedDir(r.Value)
		if err != nil {
			return fmt.Errorf("record of sharded directory %v: %w", ino, err)
		}
		if d.state == shardFilling {
			c.filling = append(c.filling, ino)
		}
	default:
		return fmt.Errorf("key %x: %w", r.Key, syscall.EIO)
	}
	return nil
}

// Inventory returns the inventory of the records so far. It omits the entries of a shard that is being filled, because
// they are also at the directory's home.
func (c *InventoryBuilder) Inventory() metadata.Inventory {
	for _, dir := range c.filling {
		delete(c.c.Entries, dir)
	}
	c.filling = slices.Delete(c.filling, 0, len(c.filling))
	return c.c
}
