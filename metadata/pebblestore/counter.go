package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// reserve is the number of inode numbers reserved on the disk at once; a crash wastes at most this many.
const reserve = 1 << 14

// counter hands out inode numbers from a block whose end is on the disk.
type counter struct {
	mu          sync.Mutex
	next, limit uint64 // under mu
	first       uint64 // first number of this run; constant after Open
}

// load continues after all numbers that an earlier run may have handed out.
func (c *counter) load(s *core) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = uint64(metadata.FirstIno)
	v, err := s.get(keyCounter)
	switch {
	case errors.Is(err, syscall.ENOENT):
	case err != nil:
		return err
	case len(v) != 8 || binary.BigEndian.Uint64(v) < c.next:
		return fmt.Errorf("counter of inode numbers %x: %w", v, syscall.EIO)
	default:
		c.next = binary.BigEndian.Uint64(v)
	}
	c.limit, c.first = c.next, c.next
	return nil
}

// Earlier reports whether the inode number ino of this home was handed out before the store was opened.
func (s *core) Earlier(ino metadata.Ino) bool { return s.here(ino) && ino.Counter() < s.counter.first }

func (s *core) newIno() (metadata.Ino, error) {
	c := &s.counter
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == c.limit {
		if err := c.extend(s); err != nil {
			return 0, err
		}
	}
	n := c.next
	c.next++
	return metadata.LiveIno(s.cfg.Self, n), nil
}

// peek returns the counter of the next inode.
func (c *counter) peek() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

func (c *counter) extend(s *core) error {
	limit := min(c.limit+reserve, metadata.MaxCounter)
	if limit == c.limit {
		return fmt.Errorf("node %d has no inode number left: %w", s.cfg.Self, syscall.ENOSPC)
	}
	err := s.set(keyCounter, binary.BigEndian.AppendUint64(nil, limit))
	if err == nil {
		err = s.wal.flush(s.db)
	}
	if err != nil {
		return ioError("reserve inode numbers", err)
	}
	c.limit = limit
	return nil
}
