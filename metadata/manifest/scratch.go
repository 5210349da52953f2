package manifest

import (
	"fmt"
	"os"
	"sync/atomic"
)

// Scratch is the room for what is sorted: a bounded piece of memory, and files for
// what is more. One Scratch may serve several at a time; each has the memory.
type Scratch struct {
	Dir    string // of the files, which have no name there
	Memory int    // bytes that are kept of what is sorted; 0 is 8 MiB

	held, peak atomic.Int64 // bytes that are kept now, and have been at the most
	shared     sharedFile   // of spools
}

const (
	defaultMemory = 8 << 20
	maxBlockSize  = 64 << 10
	minBlockSize  = 64
	fanIn         = 48 // runs that are merged at a time
)

// Memory is the most that a scan, a Build or an Ingest keeps in memory of what it
// goes through with the default Scratch, in bytes, beside hard links: what is sorted, with the blocks
// of files (Bound), or spools of some hundred stretches.
const Memory = 16 << 20

// Bound is the most bytes that one sort and one queue keep in memory of what they are
// given, however much that is, if no key with its value is longer than longest: the
// memory, or a block of each run that is merged, and of that which they are merged to; and a
// block more for both ends of the queue, or the directories that are remembered.
func (s *Scratch) Bound(longest int) int64 {
	return int64(max(s.memory(), (fanIn+1)*s.block()) + 4*s.block() + (fanIn+4)*longest)
}

func (s *Scratch) memory() int {
	if s.Memory == 0 {
		return defaultMemory
	}
	return s.Memory
}

// block is how many bytes are read or written of a file at once, but for what is
// longer.
func (s *Scratch) block() int {
	return min(max(s.memory()/(2*fanIn), minBlockSize), maxBlockSize)
}

// Peak is the most bytes that were kept at a time, by all who sort in s or spool.
func (s *Scratch) Peak() int64 { return s.peak.Load() }

// hold counts n bytes that are kept, or no longer are.
func (s *Scratch) hold(n int) {
	now := s.held.Add(int64(n))
	for {
		was := s.peak.Load()
		if now <= was || s.peak.CompareAndSwap(was, now) {
			return
		}
	}
}

// file makes a file that is gone when it is closed, or this process ends.
func (s *Scratch) file() (*os.File, error) {
	f, err := os.CreateTemp(s.Dir, "sort-*")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("room to sort in: %w", err)
	}
	return f, nil
}
