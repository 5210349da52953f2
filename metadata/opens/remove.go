package opens

import (
	"context"
	"errors"
	"sync"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
)

// remove removes files: their data, one call to each node that has some, and
// then their inodes. What fails is kept for Retry.
func (f *Files) remove(ctx context.Context, files []Loose) {
	ctx, cancel := context.WithTimeout(ctx, removeTime)
	defer cancel()
	failed := make(map[metadata.Ino]error)
	places := make(map[metadata.NodeID][]metadata.Ino)
	for _, l := range files {
		nodes, err := f.places(ctx, l)
		if err != nil {
			failed[l.Ino] = err
		}
		for _, id := range nodes {
			places[id] = append(places[id], l.Ino)
		}
	}
	f.removeObjects(ctx, places, failed)
	for _, l := range files {
		err := failed[l.Ino]
		if err == nil {
			err = f.cfg.Store.Reap(ctx, l.Ino)
		}
		if err != nil {
			f.keep(l.Ino, err)
			continue
		}
		f.Removed(l.Ino)
	}
}

// places is the nodes that can have data of a file.
func (f *Files) places(ctx context.Context, l Loose) ([]metadata.NodeID, error) {
	a, err := f.cfg.Store.Getattr(ctx, l.Ino)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	case a.Nlink > 0 || a.Mode&syscall.S_IFMT != syscall.S_IFREG:
		return nil, nil // Reap leaves what has a name
	}
	return f.cfg.Places(ctx, a, l.Unsure)
}

// removeObjects adds to failed what could not be removed.
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
				failed[ino] = err
			}
			return nil
		})
	}
	_ = g.Wait() // what failed is in failed
}

func (f *Files) keep(ino metadata.Ino, err error) {
	f.cfg.Log.WithError(err).WithField("inode", ino.String()).Debug("file without a name stays for now")
	f.mu.Lock()
	f.kept = append(f.kept, ino)
	f.mu.Unlock()
}
