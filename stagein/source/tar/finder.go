package tar

import (
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Finder looks for the first header in the middle of an archive.
type Finder struct {
	Start, Limit int64 // where the search begins; a member that ends at Limit or after it counts from its headers
	in           bool  // inside a group of headers
	g            Parser
	At           int64 // where a member may begin; 0: not found yet
}

// Scan searches a piece, which must follow the one before.
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

// guess returns an offset where a member begins if the header found is genuine. That header may be in the middle of its
// group, so only the end of its member is certain. If more bytes than extended headers can have came before it, or that
// end is too far away, guess returns the start of the group.
func (f *Finder) guess() int64 {
	end := f.g.Pos() + source.Padded(f.g.Data())
	if f.g.Start()-f.Start > MaxExtended || end >= f.Limit || end < f.g.Pos() {
		return f.g.Start()
	}
	return end
}
