package stagein

import (
	"fmt"
	"os"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// PieceSum is the checksum of a piece that a fill has brought to this node.
type PieceSum struct {
	Ino   metadata.Ino
	Off   int64 // in this node's object
	Len   int64
	Whole bool     // it is all of the file
	Sum   [16]byte // zeros: the manifest has that of the file
}

// Sums is what the journal says of the pieces that are here.
func (f *Fill) Sums() ([]PieceSum, error) {
	sums, err := f.sums()
	if err != nil {
		return nil, err
	}
	m, _ := f.cfg.Watch()
	all := make([]PieceSum, 0, len(sums))
	for p, sum := range sums {
		_, a, err := f.cfg.Files.Origin(p.ino)
		if err != nil {
			return nil, err
		}
		s := spreadOf(m, a)
		if len(s.order) > 0 && p.chunk < s.pieces() {
			all = append(all, f.pieceSum(&s, p, sum))
		}
	}
	return all, nil
}

func (f *Fill) pieceSum(s *spread, p piece, sum [16]byte) PieceSum {
	_, n, off := s.at(p.chunk, f.cfg.Self)
	return PieceSum{Ino: p.ino, Off: off, Len: n, Whole: s.a.Layout.Kind == metadata.Local, Sum: sum}
}

// Touched is the pieces in [off, off+n) of this node's object of ino, which are
// here. It wants FillConfig.Sums.
func (f *Fill) Touched(ino metadata.Ino, off, n int64) ([]PieceSum, error) {
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil || a.Size == 0 {
		return nil, err
	}
	m, _ := f.cfg.Watch()
	s := spreadOf(m, a)
	if len(s.order) == 0 {
		return nil, fmt.Errorf("inode %v: no node was up in epoch %d: %w", ino, a.Layout.Epoch, syscall.EIO)
	}
	var all []PieceSum
	for _, chunk := range s.touched(f.cfg.Self, off, n) {
		p := piece{ino, chunk}
		all = append(all, f.pieceSum(&s, p, f.journal.sum(p)))
	}
	return all, nil
}

// sums is the last sum of each piece in the journal. Where there is none it is
// in the manifest.
func (f *Fill) sums() (map[piece][16]byte, error) {
	r, err := os.Open(f.cfg.Journal)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	defer r.Close() // read only
	last := make(map[piece][16]byte)
	if _, err := readJournal(r, journalHeader(f.cfg.Digest, f.cfg.Boot), func(p piece, sum [16]byte) {
		if sum != [16]byte{} {
			last[p] = sum
		}
	}); err != nil {
		return nil, fmt.Errorf("journal %s: %w", f.cfg.Journal, err)
	}
	return last, nil
}
