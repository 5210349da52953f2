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
	Err  error  // result: EAGAIN for bytes that are not fetched yet, or fewer bytes than Len
}

// ManyReader is an optional power of a Store: many small files in one call.
type ManyReader interface {
	// ReadMany reads all of rs into buf: at most wire.MaxFiles ranges, at most wire.MaxMany bytes.
	// With verified, bytes are compared with their checksums. With an error nothing was read.
	ReadMany(ctx context.Context, rs []RangeRead, buf []byte, verified bool) error
}

// NeighbourFinder is an optional power of a Store: it knows which files lie side by side in their source.
type NeighbourFinder interface {
	// Neighbours returns the wanted files that ReadMany reads together with the file ino by one request of the
	// source; none if that is on a node.
	Neighbours(ino metadata.Ino, wanted func(metadata.Ino) bool) []metadata.Ino
}
