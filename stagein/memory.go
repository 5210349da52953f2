package stagein

import "github.com/bivouacfs/bivouac/metadata/manifest"

// Memory is the most bytes that the stage-in or the fill of one dataset keeps in memory on a node: pieces in flight, the
// cache of what is read through, and names that are sorted. Unpacking a compressed source may take unpack.MaxWindow more,
// and about 25 MiB for each core that unpacks (xz: up to 90 MiB, for five at the most).
const Memory = defaultMemory + defaultWindow + manifest.Memory
