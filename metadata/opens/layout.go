package opens

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Set calls set to apply c to an inode of the store, consistently with the nodes that have the file open: setting the
// size excludes appends and the publication of sizes, and changing the layout of an open file fails with EBUSY, because
// clients cache the layout while a file is open.
func (f *Files) Set(ctx context.Context, ino metadata.Ino, c metadata.Change, set func() (metadata.Attr, error)) (metadata.Attr, error) {
	layOut := func() (metadata.Attr, error) { return f.setLayout(ctx, ino, c, set) }
	switch {
	case c.Set&metadata.SetSize != 0:
		return f.Truncate(ino, c, layOut)
	case c.Set&metadata.GrowSize != 0:
		return f.grow(ctx, ino, layOut)
	}
	return layOut()
}

// setLayout calls set. A change of a file's layout excludes opens; opens do not exclude each other.
func (f *Files) setLayout(ctx context.Context, ino metadata.Ino, c metadata.Change, set func() (metadata.Attr, error)) (metadata.Attr, error) {
	if c.Set&metadata.SetLayoutField == 0 {
		return set()
	}
	if a, err := f.cfg.Store.Getattr(ctx, ino); err != nil || a.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		return set()
	}
	f.layouts.Lock()
	defer f.layouts.Unlock()
	if f.Held(ino) {
		return metadata.Attr{}, fmt.Errorf("inode %v: layout of an open file: %w", ino, syscall.EBUSY)
	}
	return set()
}
