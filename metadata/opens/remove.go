package opens

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
)

// Take hands out at most limit files for removal. The caller reports each with Removed or NotRemoved.
func (r *Registry) Take(limit int) []Removable {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.awaited > 0 {
		return nil
	}
	first := r.seq + 1 // the first create in progress
	for m := range r.creating {
		first = min(first, m)
	}
	var files []Removable
	for len(r.queue) > 0 && len(files) < limit && r.queue[0].since < first {
		ino := r.queue[0].ino
		r.queue = r.queue[1:]
		if f := r.files[ino]; f != nil && f.removable() {
			f.dead, f.removing = true, true
			_, unsure := r.unsure[ino]
			files = append(files, Removable{ino, unsure})
		}
	}
	if len(r.queue) == 0 {
		r.queue = nil // frees the memory after many removals
	}
	return files
}

// Removed forgets a file after its removal.
func (r *Registry) Removed(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.files, ino)
	delete(r.unsure, ino)
}

// NotRemoved requeues a file whose removal failed. The file still cannot be opened: part of its data may already be
// removed.
func (r *Registry) NotRemoved(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[ino]; f != nil {
		f.removing = false
		r.settle(ino, f)
	}
}

// Named records that an orphan was linked to a name. It does not block. A removal that has begun stops when it finds
// the name.
func (r *Registry) Named(ino metadata.Ino) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f := r.files[ino]; f != nil && !f.removing {
		f.orphan, f.dead = false, false
		r.settle(ino, f)
	}
}

// remove removes files: first their objects, with one call to each node that may store some, then their inodes. Files
// that it could not remove wait for Retry.
func (f *Files) remove(ctx context.Context, files []Removable) {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	failed := make(map[metadata.Ino]error)
	places := make(map[metadata.NodeID][]metadata.Ino)
	for _, l := range files {
		all, err := f.places(ctx, l)
		if err != nil {
			failed[l.Ino] = err
		}
		for _, p := range all {
			places[p.Node] = append(places[p.Node], p.Object)
		}
	}
	f.removeObjects(ctx, places, failed)
	for _, l := range files {
		err := failed[l.Ino]
		if err == nil {
			err = f.cfg.Store.Reap(ctx, l.Ino)
		}
		if err != nil {
			f.retryLater(l.Ino, err)
			continue
		}
		f.Removed(l.Ino)
	}
}

// places returns the objects that a file may have.
func (f *Files) places(ctx context.Context, l Removable) ([]Place, error) {
	a, err := f.cfg.Store.Doom(ctx, l.Ino)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	case a.Nlink > 0 || a.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, nil // Reap keeps files that have a name
	}
	return f.cfg.Places(ctx, a, l.Unsure)
}

// removeObjects removes objects on each node, and records errors in failed.
func (f *Files) removeObjects(ctx context.Context, places map[metadata.NodeID][]metadata.Ino, failed map[metadata.Ino]error) {
	var mu sync.Mutex // of failed
	var g errgroup.Group
	for id, inos := range places {
		g.Go(func() error {
			err := f.cfg.Remove(ctx, id, inos)
			if err == nil {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			for _, ino := range inos {
				failed[ino.File()] = err
			}
			return nil
		})
	}
	_ = g.Wait() // errors are in failed
}

func (f *Files) retryLater(ino metadata.Ino, err error) {
	f.cfg.Log.WithError(err).WithField("inode", ino.String()).Debug("could not remove an unlinked file; trying again later")
	f.mu.Lock()
	f.failed = append(f.failed, ino)
	f.mu.Unlock()
}
