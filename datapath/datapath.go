// Package datapath is the vocabulary of file data: where the bytes of a file
// are (Spans), and the small interfaces of what keeps them. Its one idea is
// that all that one node holds of one inode is one local object, in which the
// node's chunks of the file stand one behind the other; a range of the file is
// therefore at most one range on each node for each row of the stripe.
//
// It does no I/O, but that a Pipe can be emptied.
package datapath

import (
	"context"
	"io"
	"os"

	"github.com/bivouacfs/bivouac/metadata"
)

// SummedReader is a Reader whose bytes can be compared when they arrive: with
// what was read where they come from, and there with what was stored. EBADMSG is
// bytes that have changed on the way.
type SummedReader interface {
	ReadSummed(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error)
}

// PresentReader is an optional power of a Store: reads of what it can give at once, for who is not waited for. EAGAIN
// is that it cannot. What arrives was compared.
type PresentReader interface {
	ReadIfPresent(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error)
}

// Span is a piece of a file that lies in one piece on one node.
type Span struct {
	Node metadata.NodeID
	Pos  int64 // offset in the file
	Off  int64 // offset in the node's object
	Len  int64
}

// Spans cuts the range [pos, pos+n) of a file into the spans that hold it, in
// the order of the file. order is the nodes of the file's stripe (from
// cluster.Map.Order): chunk i lies on order[i%len(order)], in slot
// i/len(order) of that node's object.
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

// ObjectSize is the length of the object that the node at place k of a stripe
// of width w holds of a file of size bytes.
func ObjectSize(chunk int64, w, k int, size int64) int64 {
	if w <= 1 {
		return size
	}
	row := chunk * int64(w)
	full, rest := size/row, size%row
	return full*chunk + min(max(rest-int64(k)*chunk, 0), chunk)
}

// StandIn is where a node that stands in for the one at place k of a stripe of
// width w keeps what that one has at off of its object: behind all that it can
// have of the file by its own place, so that one object holds both.
func StandIn(chunk int64, w, k int, size, off int64) int64 {
	if w <= 1 {
		return off
	}
	return int64(k+1)*rows(chunk, w, size) + off
}

// Place is the inverse of StandIn: the place in the stripe that the offset off
// of an object belongs to, and the offset there; -1 is the node's own.
func Place(chunk int64, w int, size, off int64) (k int, own int64) {
	if w <= 1 || size == 0 {
		return -1, off
	}
	r := rows(chunk, w, size)
	return int(off/r) - 1, off % r
}

// rows is the most bytes that one node has of a file.
func rows(chunk int64, w int, size int64) int64 {
	row := chunk * int64(w)
	return (size + row - 1) / row * chunk
}

// Reader reads objects.
type Reader interface {
	// ReadAt fills p from offset off of the object. It returns fewer bytes
	// than len(p) only at the object's end, without an error: what is
	// missing, or an object that was never written (n = 0), is zeros if the
	// inode's size says so. An error is an errno; then nothing in p counts.
	ReadAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error)
}

// Writer writes objects.
type Writer interface {
	// WriteAt writes all of p or fails: ENOSPC when the node's capacity or
	// the disk is full, EIO, EFBIG. The object is made if it is not there.
	WriteAt(ctx context.Context, ino metadata.Ino, p []byte, off int64) error
	// Sync makes what was written durable on the node's disk.
	Sync(ctx context.Context, ino metadata.Ino) error
}

// Remover takes space back.
type Remover interface {
	// Truncate cuts the object to size bytes; a shorter one is left alone.
	Truncate(ctx context.Context, ino metadata.Ino, size int64) error
	// Remove removes the object; it is no error if there is none.
	Remove(ctx context.Context, ino metadata.Ino) error
}

// Space is what a node has, in bytes of file data.
type Space struct {
	Capacity int64 `json:"capacity"` // the job's quota on this node
	Used     int64 `json:"used"`
	Free     int64 `json:"free"` // what can still be written: the quota's rest or the disk's, whichever is less
	Objects  int64 `json:"objects"`
}

// Meter tells how full a store is.
type Meter interface {
	Space(ctx context.Context) (Space, error)
}

// Store is one node's data, here or through an RPC stub.
type Store interface {
	Reader
	Writer
	Remover
	Meter
	Shaper
}

// Descriptor is an open file that the kernel can read by itself.
type Descriptor interface {
	io.ReaderAt
	Fd() uintptr
}

// Opener is an optional power of a store on this machine: the file behind an
// object, for sendfile and for FUSE passthrough. The caller closes it.
type Opener interface {
	Open(ino metadata.Ino) (*os.File, error)
}
