package ingest

import (
	"io"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// search reads until it finds a header at which a member may begin, and holds the pieces that it has read. It returns
// nil if the boundary arrives first, or if there is no header in as many bytes as half of the pool holds.
func (r *region) search(from *source.Region) (g *speculation, held []*source.Piece, err error) {
	var f tar.Finder
	limit := r.part.Off + int64(r.pool.Room()/2*r.pool.Size())
	f.Start, f.Limit = r.part.Off, limit
	for {
		p, err := from.Next()
		if err == io.EOF {
			return nil, held, nil
		}
		if err != nil {
			return nil, held, err
		}
		held = append(held, p)
		if f.At == 0 {
			f.Scan(p)
		}
		if f.At != 0 && f.At < p.End() {
			return &speculation{r: r, at: f.At, from: from}, held, nil
		}
		if p.End() >= limit || len(r.boundaryIn) > 0 {
			return nil, held, nil
		}
	}
}
