package stagein

import (
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Boundary is the state of the archive's reader at the end of a region, so that
// the reader of the next can go on. It is JSON of at most some 2 MiB, mostly
// of a few hundred bytes.
type Boundary struct {
	// At is the offset of the first group of headers that is not staged,
	// and Carry the archive's bytes from there to the end of the region.
	At    int64  `json:"at"`
	Carry []byte `json:"carry,omitempty"`
	// Member is, if not nil, a member whose headers are dealt with and whose
	// data goes on in the next region; there is no Carry.
	Member *CutMember `json:"member,omitempty"`
	// Ended says that the archive has ended, at At; what comes must be nothing.
	Ended bool `json:"ended,omitempty"`
	// Some says that there was a member at all.
	Some bool `json:"some,omitempty"`
	// Mtime is the time that a global header gave to all members.
	Mtime *metadata.Time `json:"mtime,omitempty"`
}

// CutMember is a member whose data lies in several regions.
type CutMember struct {
	Path   source.Name     `json:"path"`
	Ino    metadata.Ino    `json:"ino"`
	Layout metadata.Layout `json:"layout"`
	Off    int64           `json:"off"`  // where its data begins in the archive
	Size   int64           `json:"size"` // of the file, in bytes
	// Sparse says where the data lies in a sparse file; nil is in one piece.
	Sparse *source.Sparse `json:"sparse,omitempty"`
}

// stored is how many bytes of data the archive has.
func (m *CutMember) stored() int64 {
	if m.Sparse != nil {
		return m.Sparse.Stored
	}
	return m.Size
}

// end is the offset after the data and its padding.
func (m *CutMember) end() int64 { return m.Off + source.Padded(m.stored()) }

// check refuses a boundary that cannot be of the region before p.
func (s *Boundary) check(p Part, size int64) error {
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
