package stagein

import (
	"io"

	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// search reads until a header shows where a member may begin, and holds the pieces that it has read. It returns nil if the
// boundary came first, or if there was no header in the first half of the memory.
func (r *region) search(from *source.Region) (g *speculation, held []*source.Piece, err error) {
	var f finder
	limit := r.part.Off + int64(max(int(r.cfg.Memory)/r.lim.piece, archive.MinPieces)/2*r.lim.piece)
	f.start, f.limit = r.part.Off, limit
	for {
		p, err := from.Next()
		if err == io.EOF {
			return nil, held, nil
		}
		if err != nil {
			return nil, held, err
		}
		held = append(held, p)
		if f.at == 0 {
			f.scan(p)
		}
		if f.at != 0 && f.at < p.End() {
			return &speculation{r: r, at: f.at, from: from}, held, nil
		}
		if p.End() >= limit || len(r.boundaryIn) > 0 {
			return nil, held, nil
		}
	}
}

// finder looks for the first header.
type finder struct {
	start, limit int64
	in           bool // inside a group of headers
	g            tar.Parser
	at           int64 // where a member may begin; 0: not found yet
}

func (f *finder) scan(p *source.Piece) {
	for i := 0; i+source.BlockSize <= len(p.B) && f.at == 0; i += source.BlockSize {
		b := p.B[i : i+source.BlockSize]
		if !f.in {
			if !tar.IsHeader(b) {
				continue
			}
			f.in = true
			f.g.Reset(p.Off + int64(i))
		}
		step, err := f.g.Add(b)
		if err != nil || step == tar.End {
			f.in = false
		} else if step != tar.More {
			f.at = f.guess()
		}
	}
}

// guess returns where a member surely begins if the header that was found is one. That header may be in the middle of
// its group, so that only the end of its member is sure; if more came before it than extended headers can be, or that
// end is too far away, it is the group.
func (f *finder) guess() int64 {
	end := f.g.Pos() + source.Padded(f.g.Data())
	if f.g.Start()-f.start > tar.MaxExtended || end >= f.limit || end < f.g.Pos() {
		return f.g.Start()
	}
	return end
}
