package fsclient

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
)

// DropsSetIDs notes that who writes to the file from now on may not keep setuid and
// setgid. The home takes them off when it hears of what was written: another node can have
// set them since this one last heard of the file's mode.
func (f *File) DropsSetIDs() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drops = true
}

// dropSetIDs takes them off now.
func (f *File) dropSetIDs(ctx context.Context) error {
	s, err := f.c.homeOf(f.ino)
	if err != nil {
		return err
	}
	a, err := s.Setattr(ctx, f.ino, metadata.Change{Set: metadata.DropSetIDs})
	if err != nil {
		return f.missed(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.learn(a)
	return nil
}
