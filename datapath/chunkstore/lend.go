package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Lend lends the descriptor of ino's object for sendfile, until done is called. The descriptor counts against
// Config.MaxOpen; its own offset must not be used. The file is nil if there is no object or no descriptor. A lent
// object can still be removed or truncated: the caller must ensure that this does not happen.
func (s *Store) Lend(ctx context.Context, ino metadata.Ino) (f datapath.Descriptor, done func(), err error) {
	o, err := s.table.acquire(ctx, ino, false)
	return s.lent(ino, o, err)
}

// TryLend is Lend that does not wait for a descriptor, so that a caller can hold several. The file is nil while half of
// the descriptors are in use.
func (s *Store) TryLend(ino metadata.Ino) (f datapath.Descriptor, done func(), err error) {
	o, ok, err := s.table.tryAcquire(ino)
	if !ok {
		return nil, nil, nil
	}
	return s.lent(ino, o, err)
}

// lent completes Lend with the result of acquire.
func (s *Store) lent(ino metadata.Ino, o *object, err error) (datapath.Descriptor, func(), error) {
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("object %v: %w", ino, err)
	}
	f, ok := o.file.(*osFile)
	if !ok {
		s.table.release(o)
		return nil, nil, nil
	}
	return f, func() { s.table.release(o) }, nil
}
