package datapath

import (
	"context"

	"github.com/bivouacfs/bivouac/metadata"
)

// RangeRead is a read of a range of a small file, and its result.
type RangeRead struct {
	Ino metadata.Ino
	Off int64 // offset in that node's object
	Len int64

	Data []byte // result: the bytes, in the caller's buffer
	Err  error  // result: EAGAIN if the bytes are not fetched yet or fewer than Len
}

// ManyReader is an optional interface of a Store: it reads many small files in one call.
type ManyReader interface {
	// ReadMany reads all of rs into buf: at most wire.MaxFiles ranges and wire.MaxMany bytes. If verified is set, it
	// compares the bytes with their checksums. If it fails, nothing was read.
	ReadMany(ctx context.Context, rs []RangeRead, buf []byte, verified bool) error
}

// NeighbourFinder is an optional interface of a Store: it knows which files are adjacent in their source.
type NeighbourFinder interface {
	// Neighbours returns the wanted files that ReadMany fetches together with the file ino in one request to the
	// source; none if ino is already on a node.
	Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) []metadata.Ino
}
