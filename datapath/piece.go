package datapath

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
)

// PiecePut is a write of bytes of a dataset file to the node that owns them.
type PiecePut struct {
	Ino  metadata.Ino
	Off  int64    // offset in that node's object
	Data [][]byte // its bytes, concatenated
	Sum  [16]byte // xxh3-128 of the bytes
}

// Len returns the number of bytes.
func (p *PiecePut) Len() (n int64) {
	for _, b := range p.Data {
		n += int64(len(b))
	}
	return n
}

// PiecePutter is an optional interface of a Writer: it writes many small pieces in one call.
type PiecePutter interface {
	// PutPieces writes all of ps: at most wire.MaxPieces pieces and wire.MaxData bytes. The receiver compares each
	// piece with its sum. errs has an error for each piece, nil if it was written; if err is set, it is unknown which
	// were. PutPieces keeps no reference to ps.
	PutPieces(ctx context.Context, ps []PiecePut) (errs []error, err error)
}
