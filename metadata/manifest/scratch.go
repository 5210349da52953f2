package manifest

import (
	"fmt"
	"os"
	"sync/atomic"
)

// Scratch provides bounded memory and temporary files for sorting. Several sorts may share one Scratch; each has
// that memory.
type Scratch struct {
	Dir    string // directory of the files, which are unlinked at once
	Memory int    // memory of a sort, in bytes; 0 is 8 MiB

	held, peak atomic.Int64 // bytes in use, and their maximum
	shared     sharedFile   // shared by the spools
}

const (
	defaultMemory = 8 << 20
	maxBlockSize  = 64 << 10
	minBlockSize  = 64
	fanIn         = 48 // runs that are merged at a time
)

// Memory limits what a scan, a Build or an Ingest with the default Scratch keeps in memory, in bytes, besides hard
// links: a sort with the blocks of its files, or some hundred spools.
const Memory = 16 << 20

func (s *Scratch) memory() int {
	if s.Memory == 0 {
		return defaultMemory
	}
	return s.Memory
}

// block is the read and write size of a file, in bytes.
func (s *Scratch) block() int {
	return min(max(s.memory()/(2*fanIn), minBlockSize), maxBlockSize)
}

// Peak is the maximum of bytes in memory at a time, over all sorts and spools.
func (s *Scratch) Peak() int64 { return s.peak.Load() }

// hold counts n bytes, or -n fewer.
func (s *Scratch) hold(n int) {
	now := s.held.Add(int64(n))
	for {
		was := s.peak.Load()
		if now <= was || s.peak.CompareAndSwap(was, now) {
			return
		}
	}
}

// file makes a temporary file that vanishes when it is closed, or the process ends.
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
