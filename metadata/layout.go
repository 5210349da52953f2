package metadata

import (
	"fmt"
	"syscall"
)

// The bounds of an explicit chunk size, in bytes.
const (
	MinChunkSize = 64 << 10
	MaxChunkSize = 1 << 30
)

// CheckChunkSize returns EINVAL unless size is a power of two between the bounds, or 0, which means the default.
func CheckChunkSize(n uint32) error {
	if n != 0 && (n < MinChunkSize || n > MaxChunkSize || n&(n-1) != 0) {
		return fmt.Errorf("chunk size %d is no power of two from %d to %d: %w", n, MinChunkSize, MaxChunkSize, syscall.EINVAL)
	}
	return nil
}

// Under returns the layout of a new inode that is created with l in a directory with layout dir: unset fields are
// inherited. Node is the creator's; only a Local layout keeps it.
func (l Layout) Under(dir Layout) Layout {
	if l.Kind == Striped && l.Copies == 0 && l.ChunkSize == 0 && l.Width == 0 {
		l.Kind, l.Copies, l.ChunkSize, l.Width = dir.Kind, dir.Copies, dir.ChunkSize, dir.Width
	}
	if l.Kind == Striped {
		l.Node = 0
	}
	return l
}
