package dataset

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// Fence is the way of all writes to this node's store. It keeps out what comes too late:
// writes to a dataset that failed, and writes of an attempt whose part another node has
// read again. A node that was declared down may still send both.
type Fence struct {
	ctx     context.Context // ends when the daemon stops
	store   *chunkstore.Store
	scratch job.Reserve
	dirty   dirty

	// gate is held for reading by writes, and for writing for a moment when a dataset
	// ends: what was written before can be removed then, what comes after is refused.
	gate sync.RWMutex

	mu       sync.Mutex
	ended    map[metadata.DatasetID]bool          // guarded by mu; datasets that failed
	excluded map[metadata.DatasetID][]stagein.Try // guarded by mu; tries whose inodes belong to no file
	removed  map[metadata.DatasetID]bool          // guarded by mu; ended datasets whose removal has begun
}

// NewFence guards store, in which datasets leave a reserve to scratch.
func NewFence(ctx context.Context, store *chunkstore.Store, scratch job.Reserve) *Fence {
	return &Fence{
		ctx: ctx, store: store, scratch: scratch, dirty: dirty{lazy: dirtyLazy, most: dirtyMost, step: dirtyStep},
		ended: make(map[metadata.DatasetID]bool), excluded: make(map[metadata.DatasetID][]stagein.Try),
		removed: make(map[metadata.DatasetID]bool),
	}
}

// Write stores p in this node's object of ino. ECANCELED says that it came too late.
func (f *Fence) Write(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if !ino.Sealed() {
		return f.store.WriteAt(ctx, ino, p, off)
	}
	err := f.writeStaged(ino, func() error {
		if f.scratch != (job.Reserve{}) && !f.room(ino, int64(len(p))) {
			return fmt.Errorf("inode %v: the rest of this node's space is reserved for scratch: %w", ino, syscall.ENOSPC)
		}
		return f.store.WriteAt(ctx, ino, p, off)
	})
	if err != nil {
		return err
	}
	return f.dirty.wrote(f.ctx, f.store, ino, off, int64(len(p)))
}

// WriteSpare is Write for a replica: it takes only free room, and may use the reserve of scratch
// until scratch needs it.
func (f *Fence) WriteSpare(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if err := f.writeStaged(ino, func() error { return f.store.WriteSpare(ctx, ino, p, off) }); err != nil {
		return err
	}
	return f.dirty.wrote(f.ctx, f.store, ino, off, int64(len(p)))
}

// AdoptKept is Write of all of a file, from what an earlier job has kept on this node.
func (f *Fence) AdoptKept(ctx context.Context, key [16]byte, ino metadata.Ino) (sum [16]byte, ok bool) {
	err := f.writeStaged(ino, func() error {
		sum, ok = f.store.AdoptKept(ctx, key, ino)
		return nil
	})
	return sum, ok && err == nil
}

func (f *Fence) writeStaged(ino metadata.Ino, write func() error) error {
	f.gate.RLock()
	defer f.gate.RUnlock()
	if f.refuses(ino) {
		return fmt.Errorf("inode %v of dataset %d, which failed or was read again by another node: %w", ino, ino.Dataset(), syscall.ECANCELED)
	}
	return write()
}

// room reports whether n more bytes of a dataset's object fit beside the reserve of scratch. An object that exists may
// be finished: its earlier bytes are overwritten.
func (f *Fence) room(ino metadata.Ino, n int64) bool {
	s, err := f.store.Space(f.ctx)
	if err != nil || s.Free-f.scratch.Of(s.Capacity) >= n {
		return true // the write reports the error
	}
	took, err := f.store.Allocated(f.ctx, ino)
	return err != nil || took > 0
}

func (f *Fence) refuses(ino metadata.Ino) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	ds := ino.Dataset()
	return f.ended[ds] || excludes(f.excluded[ds], ino)
}

// excludes reports whether ino belongs to one of the attempts. Number 0 is a member of
// which several nodes read pieces, in whichever attempt.
func excludes(all []stagein.Try, ino metadata.Ino) bool {
	return ino.Seq() > 0 && slices.ContainsFunc(all, func(t stagein.Try) bool { return t.Number == ino.Part() && ino.Seq() > t.Kept })
}

// End refuses writes to a dataset that failed. When it returns, none is under way.
func (f *Fence) End(id metadata.DatasetID) {
	f.gate.Lock()
	defer f.gate.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[id] = true
}

// Ended reports whether End was called.
func (f *Fence) Ended(id metadata.DatasetID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[id]
}

// ClaimRemoval reports whether the caller is the one to remove what this node has of a
// dataset that failed.
func (f *Fence) ClaimRemoval(id metadata.DatasetID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed[id] {
		return false
	}
	f.removed[id] = true
	return true
}

// Exclude refuses writes of attempts from now on and removes what they have stored.
func (f *Fence) Exclude(id metadata.DatasetID, attempts []stagein.Try) error {
	if len(attempts) == 0 {
		return nil
	}
	f.exclude(id, attempts)
	_, err := f.store.RemoveAll(func(ino metadata.Ino) bool {
		return ino.Sealed() && ino.Dataset() == id && excludes(attempts, ino)
	})
	return err
}

func (f *Fence) exclude(id metadata.DatasetID, attempts []stagein.Try) {
	f.gate.Lock()
	defer f.gate.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	all := slices.Clone(f.excluded[id]) // the old one may be in use
	for _, t := range attempts {
		i := slices.IndexFunc(all, func(x stagein.Try) bool { return x.Number == t.Number })
		if i < 0 {
			all = append(all, t)
			continue
		}
		all[i].Kept = min(all[i].Kept, t.Kept) // what was excluded once stays excluded
	}
	f.excluded[id] = all
}

// RemoveObjects removes what this node has stored of a dataset.
func (f *Fence) RemoveObjects(id metadata.DatasetID) (int, error) {
	return f.store.RemoveAll(func(ino metadata.Ino) bool { return ino.Sealed() && ino.Dataset() == id })
}
