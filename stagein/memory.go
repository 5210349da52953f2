package stagein

import "github.com/bivouacfs/bivouac/metadata/manifest"

// Memory bounds the bytes that the stage-in or the fill of one dataset keeps in memory on a node: pieces in flight, the
// read-through cache, and names being sorted. Unpacking a compressed source may take unpack.MaxWindow more, and about
// 25 MiB per core that unpacks (xz: up to 90 MiB, on at most five cores).
const Memory = DefaultBuffers + DefaultCache + manifest.Memory

// Defaults of a node, for one dataset.
const (
	DefaultBuffers = 64 << 20  // bytes of pieces in flight
	DefaultCache   = 256 << 20 // bytes cached by read-through
	DefaultWorkers = 16        // pieces stored, or files read, concurrently
)

const (
	DefaultStripe = 64 << 20 // bytes above which a file of a dataset is striped
	// OverflowRun is the bytes of an archive that overflow together. One request can read them together with the file
	// that crosses their end.
	OverflowRun = 768 << 10
	StripeChunk = 8 << 20 // bytes of a chunk of a striped file
	PageSize    = 4096    // page size of the nodes' filesystems
)

// Pages returns the bytes that a file of n bytes takes on disk.
func Pages(n int64) int64 { return (n + PageSize - 1) / PageSize * PageSize }
