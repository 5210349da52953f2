package daemon

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// layoutGate keeps the layout of an empty file from changing while somebody
// opens it: who has it open knows where its bytes go from the answer to that,
// for as long as he has it. Opens pass together, a change of layout alone.
// Nothing in it leaves this node.
type layoutGate struct {
	mu sync.RWMutex // before all locks of the store and of the registry of opens
}

// Open is metadata.Opens.
func (h *home) Open(ctx context.Context, by metadata.Holder, ino metadata.Ino, t metadata.Ticket) (metadata.Attr, error) {
	h.layouts.mu.RLock()
	defer h.layouts.mu.RUnlock()
	return h.Opens.Open(ctx, by, ino, t)
}

// CreateOpen is metadata.Opens.
func (h *home) CreateOpen(ctx context.Context, by metadata.Holder, t metadata.Ticket, dir metadata.Ino, name string, n metadata.New) (metadata.Attr, error) {
	h.layouts.mu.RLock()
	defer h.layouts.mu.RUnlock()
	return h.Opens.CreateOpen(ctx, by, t, dir, name, n)
}

// setattr is the Setattr of the store, but the layout of a file that is open is
// EBUSY.
func (h *home) setattr(ctx context.Context, ino metadata.Ino, c metadata.Change) (metadata.Attr, error) {
	if c.Set&(metadata.SetLayoutKind|metadata.SetChunkSize) == 0 {
		return h.Store.Setattr(ctx, ino, c)
	}
	if a, err := h.Store.Getattr(ctx, ino); err != nil || isDir(a.Mode) {
		return h.Store.Setattr(ctx, ino, c)
	}
	h.layouts.mu.Lock()
	defer h.layouts.mu.Unlock()
	if h.files.Held(ino) {
		return metadata.Attr{}, fmt.Errorf("inode %v: layout of an open file: %w", ino, syscall.EBUSY)
	}
	return h.Store.Setattr(ctx, ino, c)
}
