package opens

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Set has set change the inode ino of the store by c, so that nobody who uses
// the file is contradicted: a size that is set waits for the appends under way,
// and they for it; the layout of a file that is open is EBUSY, because who has
// it open knows where its bytes go for as long as he has it.
func (f *Files) Set(ctx context.Context, ino metadata.Ino, c metadata.Change, set func() (metadata.Attr, error)) (metadata.Attr, error) {
	layOut := func() (metadata.Attr, error) { return f.layOut(ctx, ino, c, set) }
	if c.Set&metadata.SetSize == 0 {
		return layOut()
	}
	return f.Truncate(ino, c.Size, layOut)
}

// layOut is set; opens pass together, a change of a file's layout alone.
func (f *Files) layOut(ctx context.Context, ino metadata.Ino, c metadata.Change, set func() (metadata.Attr, error)) (metadata.Attr, error) {
	if c.Set&(metadata.SetLayoutKind|metadata.SetChunkSize) == 0 {
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
