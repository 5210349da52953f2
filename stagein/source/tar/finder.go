package tar

import (
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Finder looks for the first header in the middle of an archive.
type Finder struct {
	Start, Limit int64 // where the search begins; a member that ends behind Limit is not looked behind
	in           bool  // inside a group of headers
	g            Parser
	At           int64 // where a member may begin; 0: not found yet
}

// Scan looks in a piece, which follows the one before.
func (f *Finder) Scan(p *source.Piece) {
	for i := 0; i+source.BlockSize <= len(p.B) && f.At == 0; i += source.BlockSize {
		b := p.B[i : i+source.BlockSize]
		if !f.in {
			if !IsHeader(b) {
				continue
			}
			f.in = true
			f.g.Reset(p.Off + int64(i))
		}
		step, err := f.g.Add(b)
		if err != nil || step == End {
			f.in = false
		} else if step != More {
			f.At = f.guess()
		}
	}
}

// guess returns where a member surely begins if the header that was found is one. That header may be in the middle of
// its group, so that only the end of its member is sure; if more came before it than extended headers can be, or that
// end is too far away, it is the group.
func (f *Finder) guess() int64 {
	end := f.g.Pos() + source.Padded(f.g.Data())
	if f.g.Start()-f.Start > MaxExtended || end >= f.Limit || end < f.g.Pos() {
		return f.g.Start()
	}
	return end
}
