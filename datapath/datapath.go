package datapath

import (
	"context"
	"io"
	"os"

	"github.com/bivouacfs/bivouac/metadata"
)

// SummedReader is a Reader with end-to-end checksums: the node that reads the bytes compares them with the staged
// checksum, and the receiver with the sender's. EBADMSG means that they changed in between.
type SummedReader interface {
	ReadSummed(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error)
}

// PresentReader is an optional interface of a Store: checksummed reads of data that the node can return at once; EAGAIN
// if it cannot.
type PresentReader interface {
	ReadIfPresent(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error)
}

// Span is a range of a file that is contiguous on one node.
type Span struct {
	Node metadata.NodeID
	Pos  int64 // offset in the file
	Off  int64 // offset in the node's object
	Len  int64
}

// Spans splits the range [pos, pos+n) of a file into its spans, in the order of the file. order lists the nodes of the
// file's stripe (cluster.Map.Order): chunk i is on order[i%len(order)], in slot i/len(order) of that node's object.
func Spans(chunk int64, order []metadata.NodeID, pos, n int64) []Span {
	w := int64(len(order))
	if w == 0 || n <= 0 || pos < 0 {
		return nil
	}
	if w == 1 {
		return []Span{{Node: order[0], Pos: pos, Off: pos, Len: n}}
	}
	spans := make([]Span, 0, n/chunk+2)
	for end := pos + n; pos < end; {
		i, in := pos/chunk, pos%chunk
		l := min(chunk-in, end-pos)
		spans = append(spans, Span{Node: order[i%w], Pos: pos, Off: i/w*chunk + in, Len: l})
		pos += l
	}
	return spans
}

// ObjectSize returns the size of the object on the node at position k of a stripe of width w, for a
// file of size bytes.
func ObjectSize(chunk int64, w, k int, size int64) int64 {
	if w <= 1 {
		return size
	}
	row := chunk * int64(w)
	full, rest := size/row, size%row
	return full*chunk + min(max(rest-int64(k)*chunk, 0), chunk)
}

// StandIn returns where a substitute for the node at position k of a stripe of width w stores the byte at off of that
// node's object: after everything that it can hold for its own position, so that one object holds both.
func StandIn(chunk int64, w, k int, size, off int64) int64 {
	if w <= 1 {
		return off
	}
	return int64(k+1)*rows(chunk, w, size) + off
}

// Place is the inverse of StandIn: it maps the offset off of an object to the position in the stripe and the offset
// there; position -1 is the node's own.
func Place(chunk int64, w int, size, off int64) (k int, own int64) {
	if w <= 1 || size == 0 {
		return -1, off
	}
	r := rows(chunk, w, size)
	return int(off/r) - 1, off % r
}

// ObjectOffset returns where chunk i of a file of size bytes is in the object of node on, which owns the chunk or
// substitutes its owner.
func ObjectOffset(chunk int64, order []metadata.NodeID, size, i int64, on metadata.NodeID) int64 {
	w := int64(len(order))
	off := i / w * chunk
	if order[i%w] != on {
		off = StandIn(chunk, len(order), int(i%w), size, off)
	}
	return off
}

// ChunkAt returns which chunk is at offset off of the object of a node at position self of the stripe, as owner or as
// substitute; -1: none.
func ChunkAt(chunk int64, w, self int, size, off int64) int64 {
	k, own := Place(chunk, w, size, off)
	if w == 1 {
		k = 0 // a substitute for the only node has the same object
	} else if k < 0 {
		k = self
	}
	if i := own/chunk*int64(w) + int64(k); k >= 0 && k < w && i*chunk < size {
		return i
	}
	return -1
}

// rows returns the most bytes that one node holds of a file.
func rows(chunk int64, w int, size int64) int64 {
	row := chunk * int64(w)
	return (size + row - 1) / row * chunk
}

// Reader reads objects.
type Reader interface {
	// ReadAt fills p from offset off of the object. It returns fewer bytes than len(p) only at the
	// end of the object, without an error: missing bytes, or a whole object that was never written
	// (n = 0), are zeros up to the size of the inode. Errors are errnos; then the content of p is
	// undefined.
	ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error)
}

// Writer writes objects.
type Writer interface {
	// WriteAt writes all of p or fails: ENOSPC if the node's quota or the disk is full, EIO, EFBIG.
	// It creates the object if necessary.
	WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error
	// Sync makes completed writes durable on the node's disk.
	Sync(ctx context.Context, ino metadata.Ino) error
}

// Remover frees space.
type Remover interface {
	// Truncate cuts the object to size bytes; a shorter one stays as it is.
	Truncate(ctx context.Context, ino metadata.Ino, size int64) error
	// Remove removes the object, if there is one.
	Remove(ctx context.Context, ino metadata.Ino) error
}

// Space is the capacity of a node, in bytes of file data.
type Space struct {
	Capacity int64 `json:"capacity"` // the job's quota on this node
	Used     int64 `json:"used"`
	Free     int64 `json:"free"` // the rest of the quota or of the disk, whichever is less
	Objects  int64 `json:"objects"`
}

// Full reports whether less than a hundredth is free.
func (s Space) Full() bool { return s.Capacity > 0 && s.Free < s.Capacity/100 }

// Meter reports how full a store is.
type Meter interface {
	Space(ctx context.Context) (Space, error)
}

// Store is one node's data, local or through an RPC stub.
type Store interface {
	Reader
	Writer
	Remover
	Meter
	Shaper
}

// Descriptor is an open file that the kernel can read.
type Descriptor interface {
	io.ReaderAt
	Fd() uintptr
}

// Opener is an optional interface of a local store: it opens the file of an object, for sendfile and for FUSE
// passthrough. The caller closes the file.
type Opener interface {
	Open(ino metadata.Ino) (*os.File, error)
}
