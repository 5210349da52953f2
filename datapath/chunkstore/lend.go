package chunkstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// Lend lends the descriptor of ino's object for sendfile, until done is called. It counts against
// Config.MaxOpen; its own offset must not be used. The file is nil if there is no object or no
// descriptor. A lent object can still be removed or truncated: the caller must know that this does
// not happen.
func (s *Store) Lend(ctx context.Context, ino metadata.Ino) (f datapath.Descriptor, done func(), err error) {
	return s.lent(ino)(s.table.acquire(ctx, ino, false))
}

// TryLend is Lend that does not wait for a descriptor, so that a caller can hold several. The
// file is nil while half of the descriptors are in use.
func (s *Store) TryLend(ino metadata.Ino) (f datapath.Descriptor, done func(), err error) {
	if o, ok, err := s.table.tryAcquire(ino); ok {
		return s.lent(ino)(o, err)
	}
	return nil, nil, nil
}

// lent returns the rest of Lend.
func (s *Store) lent(ino metadata.Ino) func(o *object, err error) (datapath.Descriptor, func(), error) {
	return func(o *object, err error) (datapath.Descriptor, func(), error) {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("object %v: %w", ino, err)
		}
		of, ok := o.file.(*osFile)
		if !ok {
			s.table.release(o)
			return nil, nil, nil
		}
		return of, func() { s.table.release(o) }, nil
	}
}
