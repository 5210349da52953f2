package opens

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
)

// remove removes files: first their objects, with one call to each node that may store some,
// then their inodes. Files that it could not remove wait for Retry.
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
	a, err := f.cfg.Store.Getattr(ctx, l.Ino)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	case a.Nlink > 0 || a.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, nil // Reap leaves files that have a name
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
