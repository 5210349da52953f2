package fill

import (
	"slices"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// placement describes how the pieces of a file are spread over the nodes.
type placement struct {
	a     metadata.Attr
	chunk int64             // bytes per piece
	order []metadata.NodeID // stripe order
}

func placementOf(m cluster.Map, a metadata.Attr) placement {
	s := placement{a: a, chunk: a.Layout.Chunk(), order: m.Order(a.Ino, a.Layout)}
	if a.Layout.Kind == metadata.Local {
		s.chunk = max(a.Size, 1)
	}
	return s
}

// pieces returns the number of pieces of the file.
func (s *placement) pieces() uint32 { return uint32((s.a.Size + s.chunk - 1) / s.chunk) }

// owner returns the node that the layout assigns a piece to.
func (s *placement) owner(chunk uint32) metadata.NodeID { return s.order[int(chunk)%len(s.order)] }

// at returns a piece's position in the file, its length, and its offset in the object of self.
func (s *placement) at(chunk uint32, self metadata.NodeID) (pos, n, off int64) {
	pos = int64(chunk) * s.chunk
	return pos, min(s.chunk, s.a.Size-pos), datapath.ObjectOffset(s.chunk, s.order, s.a.Size, int64(chunk), self)
}

// overlapping returns the pieces that overlap [off, off+n) of the object of self.
func (s *placement) overlapping(self metadata.NodeID, off, n int64) []uint32 {
	if s.a.Layout.Kind == metadata.Local {
		return []uint32{0}
	}
	var all []uint32
	k := slices.Index(s.order, self)
	for end := off + n; off < end; off = off/s.chunk*s.chunk + s.chunk {
		if chunk := datapath.ChunkAt(s.chunk, len(s.order), k, s.a.Size, off); chunk >= 0 {
			all = append(all, uint32(chunk))
		}
	}
	return all
}
