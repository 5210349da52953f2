package ingest

import (
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// ends gives the objects of a sparse file their full length: if one ends with a hole, it writes the last byte.
func (p *pusher) ends(o *stagein.Object, m *source.Sparse) error {
	if m == nil || m.Size == 0 {
		return nil
	}
	for _, pos := range lastBytes(o.Layout, len(o.Nodes), m.Size) {
		if m.Data(pos) {
			continue
		}
		if err := p.put(o, []byte{0}, source.Bytes(nil, 0), pos); err != nil {
			return err
		}
		p.count(-1) // counted with its hole
	}
	return nil
}

// lastBytes returns the offset of the last byte of each object of a file of size bytes that is striped over width
// nodes.
func lastBytes(l metadata.Layout, width int, size int64) []int64 {
	if l.Kind != metadata.Striped {
		return []int64{size - 1}
	}
	var all []int64
	chunk := l.Chunk()
	for c := (size - 1) / chunk; c >= 0 && len(all) < width; c-- {
		all = append(all, min((c+1)*chunk, size)-1)
	}
	return all
}
