package stagein

import "github.com/bivouacfs/bivouac/metadata/manifest"

// Memory is the most bytes that the stage-in or the fill of one dataset keeps in memory on a node: pieces in flight, the
// cache of what is read through, and names that are sorted. Unpacking a compressed source may take unpack.MaxWindow more,
// and about 25 MiB for each core that unpacks (xz: up to 90 MiB, for five at the most).
const Memory = DefaultBuffers + DefaultCache + manifest.Memory

// The defaults of a node, for one dataset.
const (
	DefaultBuffers = 64 << 20  // bytes of pieces in flight
	DefaultCache   = 256 << 20 // bytes cached by read-through
	DefaultWorkers = 16        // pieces that are stored, or files that are read, at a time
)

const (
	DefaultStripe = 64 << 20 // bytes above which a file of a dataset is striped
	// OverflowRun is the bytes of an archive that overflow together. With the file that lies across their end, they can be
	// read by one request.
	OverflowRun = 768 << 10
	StripeChunk = 8 << 20 // bytes of a chunk of a striped file
	PageSize    = 4096    // of the nodes' filesystems
)

// Pages returns the bytes that a file of n bytes takes on a disk.
func Pages(n int64) int64 { return (n + PageSize - 1) / PageSize * PageSize }
