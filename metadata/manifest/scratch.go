package manifest

import (
	"fmt"
	"os"
	"sync/atomic"
)

// Scratch provides bounded memory and temporary files for sorting. Several sorts may share one Scratch; each sort may
// use that much memory.
type Scratch struct {
	Dir    string // directory of the files, which are unlinked on creation
	Memory int    // memory of a sort, in bytes; 0 is 8 MiB

	held, peak atomic.Int64 // bytes in use, and their maximum
	shared     sharedFile   // shared by the spools
}

const (
	defaultMemory = 8 << 20
	maxBlockSize  = 64 << 10
	minBlockSize  = 64
	fanIn         = 48 // runs merged at once
)

// Memory limits the memory of a scan, a Build or an Ingest with the default Scratch, in bytes, besides hard links: that
// of a sort with the blocks of its files, or of some hundred spools.
const Memory = 16 << 20

func (s *Scratch) memory() int {
	if s.Memory == 0 {
		return defaultMemory
	}
	return s.Memory
}

// block returns the read and write size of a file, in bytes.
func (s *Scratch) block() int {
	return min(max(s.memory()/(2*fanIn), minBlockSize), maxBlockSize)
}

// Peak returns the maximum number of bytes in memory at once, over all sorts and spools.
func (s *Scratch) Peak() int64 { return s.peak.Load() }

// hold adds n, which may be negative, to the bytes in memory.
func (s *Scratch) hold(n int) {
	now := s.held.Add(int64(n))
	for {
		was := s.peak.Load()
		if now <= was || s.peak.CompareAndSwap(was, now) {
			return
		}
	}
}

// file creates a temporary file that disappears when it is closed or the process ends.
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
