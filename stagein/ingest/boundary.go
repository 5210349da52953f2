package ingest

import (
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Boundary is the parser's state at the end of a region of a tar, from which the reader of the next region continues.
// It is encoded as JSON, mostly of a few hundred bytes, at most some 2 MiB.
type Boundary struct {
	// At is the offset of the first group of headers that is not staged; Carry holds the archive's bytes from there to
	// the end of the region.
	At    int64  `json:"at"`
	Carry []byte `json:"carry,omitempty"`
	// Member, if not nil, is a member whose headers are parsed and whose data continues in the next region. Then Carry
	// is empty.
	Member *CutMember `json:"member,omitempty"`
	// Ended means that the archive has ended, at At. Nothing may follow.
	Ended bool `json:"ended,omitempty"`
	// Some means that the archive has had a member.
	Some bool `json:"some,omitempty"`
	// Mtime is the time that a global header gave to all members.
	Mtime *metadata.Time `json:"mtime,omitempty"`
}

// CutMember is a member whose data spans several regions.
type CutMember struct {
	Path   source.Name     `json:"path"`
	Ino    metadata.Ino    `json:"ino"`
	Layout metadata.Layout `json:"layout"`
	Off    int64           `json:"off"`  // offset of its data in the archive
	Size   int64           `json:"size"` // of the file, in bytes
	// Sparse maps the data of a sparse file; nil: the file is not sparse.
	Sparse *source.Sparse `json:"sparse,omitempty"`
}

// stored returns how many bytes of data are in the archive.
func (m *CutMember) stored() int64 {
	if m.Sparse != nil {
		return m.Sparse.Stored
	}
	return m.Size
}

// end returns the offset after the member's data and padding.
func (m *CutMember) end() int64 { return m.Off + source.Padded(m.stored()) }

// check refuses a boundary that the region before p cannot have sent.
func (s *Boundary) check(p stagein.Part, size int64) error {
	bad := func(why string) error {
		return fmt.Errorf("boundary of region %d: %s: %w", p.Index, why, syscall.EPROTO)
	}
	if m := s.Member; m != nil {
		switch {
		case len(s.Carry) > 0 || s.Ended:
			return bad("a member and more")
		case m.Sparse != nil && (m.Sparse.Check() != nil || m.Sparse.Size != m.Size):
			return bad("a map of holes that does not add up")
		case m.stored() < 0 || m.stored() > size || m.Off < 0 || m.Off > p.Off || m.end() < p.Off || m.end() > size:
			return bad("a member that does not lie over the seam")
		}
		return nil
	}
	if s.At < 0 || s.At > p.Off || s.At%source.BlockSize != 0 {
		return bad("an offset that is not before it")
	}
	if !s.Ended && int64(len(s.Carry)) != p.Off-s.At {
		return bad("bytes are missing")
	}
	return nil
}
