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

// Fence is the path of all writes to this node's store. It refuses late writes: those to a dataset that failed, and
// those of an attempt whose part another node has read again. A node that was declared down may still send both.
type Fence struct {
	ctx     context.Context // ends when the daemon stops
	store   *chunkstore.Store
	scratch job.Reserve
	dirty   dirty

	// Writes hold gate shared. The end of a dataset takes it exclusively for a moment: all earlier writes have ended
	// then and their data can be removed, and later writes are refused.
	gate sync.RWMutex

	mu       sync.Mutex
	ended    map[metadata.DatasetID]bool          // guarded by mu; datasets that failed
	excluded map[metadata.DatasetID][]stagein.Try // guarded by mu; tries whose inodes belong to no file
	removed  map[metadata.DatasetID]bool          // guarded by mu; ended datasets whose removal has begun
}

// NewFence guards store. Datasets leave the reserve scratch free.
func NewFence(ctx context.Context, store *chunkstore.Store, scratch job.Reserve) *Fence {
	return &Fence{
		ctx: ctx, store: store, scratch: scratch, dirty: dirty{lazy: dirtyLazy, most: dirtyMost, step: dirtyStep},
		ended: make(map[metadata.DatasetID]bool), excluded: make(map[metadata.DatasetID][]stagein.Try),
		removed: make(map[metadata.DatasetID]bool),
	}
}

// Write stores p in this node's object of ino. It returns ECANCELED for a late write.
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

// WriteSpare is Write for a replica: it takes only free room, and may use the reserve of scratch until scratch needs
// it.
func (f *Fence) WriteSpare(ctx context.Context, ino metadata.Ino, p []byte, off int64) error {
	if err := f.writeStaged(ino, func() error { return f.store.WriteSpare(ctx, ino, p, off) }); err != nil {
		return err
	}
	return f.dirty.wrote(f.ctx, f.store, ino, off, int64(len(p)))
}

// AdoptKept writes a whole file from the copy that an earlier job has kept on this node. It is fenced like Write.
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

// room reports whether n more bytes of a dataset's object fit beside the reserve of scratch. An existing object may
// always be finished: its earlier bytes are overwritten.
func (f *Fence) room(ino metadata.Ino, n int64) bool {
	s, err := f.store.Space(f.ctx)
	if err != nil || s.Free-f.scratch.Of(s.Capacity) >= n {
		return true // the write will report the error
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

// excludes reports whether ino belongs to one of the attempts. Number 0 is a member whose pieces several nodes read, in
// any attempt.
func excludes(all []stagein.Try, ino metadata.Ino) bool {
	return ino.Seq() > 0 && slices.ContainsFunc(all, func(t stagein.Try) bool { return t.Number == ino.Part() && ino.Seq() > t.Kept })
}

// End refuses further writes to a dataset that failed. When it returns, no write is in progress.
func (f *Fence) End(id metadata.DatasetID) {
	f.gate.Lock()
	defer f.gate.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended[id] = true
}

// Ended reports whether End was called for the dataset.
func (f *Fence) Ended(id metadata.DatasetID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ended[id]
}

// ClaimRemoval reports whether the caller must remove this node's data of a dataset that failed: it returns true once.
func (f *Fence) ClaimRemoval(id metadata.DatasetID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.removed[id] {
		return false
	}
	f.removed[id] = true
	return true
}

// Exclude refuses further writes of attempts and removes the objects that they have stored.
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
	all := slices.Clone(f.excluded[id]) // readers may still use the old slice
	for _, t := range attempts {
		i := slices.IndexFunc(all, func(x stagein.Try) bool { return x.Number == t.Number })
		if i < 0 {
			all = append(all, t)
			continue
		}
		all[i].Kept = min(all[i].Kept, t.Kept) // an inode that was excluded once stays excluded
	}
	f.excluded[id] = all
}

// RemoveObjects removes this node's objects of a dataset.
func (f *Fence) RemoveObjects(id metadata.DatasetID) (int, error) {
	return f.store.RemoveAll(func(ino metadata.Ino) bool { return ino.Sealed() && ino.Dataset() == id })
}
