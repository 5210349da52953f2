package datapath

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
)

// PiecePut is bytes of a file of a dataset, on their way to the node that is to have them.
type PiecePut struct {
	Ino  metadata.Ino
	Off  int64    // in that node's object
	Data [][]byte // its bytes, one behind the other
	Sum  [16]byte // the xxh3-128 of them
}

// Len is how many bytes it has.
func (p *PiecePut) Len() (n int64) {
	for _, b := range p.Data {
		n += int64(len(b))
	}
	return n
}

// PiecePutter is an optional power of a Writer: many small pieces in one call.
type PiecePutter interface {
	// PutPieces writes all of each of ps, which are at most
	// wire.MaxPieces with at most wire.MaxData bytes. Each is compared with its
	// sum where it arrives. errs has an error for each, nil for one that is
	// written; with err it is not known which are. It keeps nothing of ps.
	PutPieces(ctx context.Context, ps []PiecePut) (errs []error, err error)
}
