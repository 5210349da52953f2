package archive

import (
	"encoding/binary"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// ChunkCRCs computes the CRC-32C of each chunk of a striped file, whose bytes must arrive in order. Gaps are holes.
type ChunkCRCs struct {
	chunk int64 // bytes
	cur   HoleSum
	sums  []byte // manifest.CRCs
}

// NewChunkCRCs returns nil, which is valid, if a file of size bytes is not striped or has too many chunks.
func NewChunkCRCs(l metadata.Layout, size int64) *ChunkCRCs {
	if l.Kind != metadata.Striped || (size-1)/l.Chunk() >= manifest.MaxChunks {
		return nil
	}
	return &ChunkCRCs{chunk: l.Chunk()}
}

func (c *ChunkCRCs) Write(b []byte, pos int64) {
	for c != nil && len(b) > 0 {
		c.upTo(pos)
		n := min(c.next()-pos, int64(len(b)))
		c.cur.Write(b[:n], pos)
		b, pos = b[n:], pos+n
	}
}

// next returns the end of the current chunk.
func (c *ChunkCRCs) next() int64 { return int64(len(c.sums)/4+1) * c.chunk }

// upTo closes the chunks that end at or before pos.
func (c *ChunkCRCs) upTo(pos int64) {
	for end := c.next(); end <= pos; end = c.next() {
		c.sums = binary.BigEndian.AppendUint32(c.sums, c.cur.UpTo(end))
		c.cur = HoleSum{Pos: end}
	}
}

// End returns the sums of a file of size bytes.
func (c *ChunkCRCs) End(size int64) manifest.CRCs {
	if c == nil || size == 0 {
		return ""
	}
	if c.upTo(size); size%c.chunk > 0 {
		c.sums = binary.BigEndian.AppendUint32(c.sums, c.cur.UpTo(size))
	}
	return manifest.CRCs(c.sums)
}
