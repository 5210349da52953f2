package stagein

import "github.com/bivouacfs/bivouac/metadata/manifest"

// Memory is the most that the stage-in or the fill of one dataset keeps of its
// bytes on a node: the pieces under way, and the window of what is read through, of which
// places in compressed tars have a part; and
// of its names, when they are scanned and sorted.
// Who unpacks a compressed source may need unpack.MaxWindow more, and where several processors do it
// about 25 MiB for each of them, of xz up to 90 for five at the most.
const Memory = defaultMemory + defaultWindow + manifest.Memory
