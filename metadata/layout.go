package metadata

import (
	"fmt"
	"syscall"
)

// The bounds of a chunk size that is not the default, in bytes.
const (
	MinChunkSize = 64 << 10
	MaxChunkSize = 1 << 30
)

// CheckChunkSize is EINVAL for what is no power of two between the bounds.
// Zero, the default, is good.
func CheckChunkSize(n uint32) error {
	if n != 0 && (n < MinChunkSize || n > MaxChunkSize || n&(n-1) != 0) {
		return fmt.Errorf("chunk size %d is no power of two from %d to %d: %w", n, MinChunkSize, MaxChunkSize, syscall.EINVAL)
	}
	return nil
}

// Under is the layout of a new inode that is made with l in a directory of
// layout dir: what l leaves open, the directory says. Node is that of the
// maker, which only a Local layout keeps.
func (l Layout) Under(dir Layout) Layout {
	if l.Kind == Striped && l.Copies == 0 && l.ChunkSize == 0 && l.Width == 0 {
		l.Kind, l.Copies, l.ChunkSize, l.Width = dir.Kind, dir.Copies, dir.ChunkSize, dir.Width
	}
	if l.Kind == Striped {
		l.Node = 0
	}
	return l
}
