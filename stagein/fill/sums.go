package fill

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
)

// PieceSum is the checksum of a piece that a fill stored on this node.
type PieceSum struct {
	Ino   metadata.Ino
	Off   int64 // in this node's object
	Len   int64
	Whole bool     // the piece is the whole file
	Sum   [16]byte // zeros: the manifest has the file's checksum
}

// ChunkSums is implemented by Files that know the chunk CRC-32Cs of striped files of a single pass, and of no others.
type ChunkSums interface {
	Chunks(ino metadata.Ino) (manifest.CRCs, error)
}

// chunks returns the checksums of a file's chunks, if the manifest has them.
func (f *Fill) chunks(a *metadata.Attr) (manifest.CRCs, error) {
	c, ok := f.cfg.Files.(ChunkSums)
	if !ok || a.Layout.Kind != metadata.Striped {
		return "", nil
	}
	return c.Chunks(a.Ino)
}

// Sums returns the checksums of the pieces that are here: those of chunks from the manifest, if it has them, otherwise
// from the journal.
func (f *Fill) Sums() ([]PieceSum, error) {
	sums, err := f.sums()
	if err != nil {
		return nil, err
	}
	m, _ := f.cfg.Watch()
	all := make([]PieceSum, 0, len(sums))
	var bad error
	err = f.cfg.Files.Located(func(_ manifest.Origin, a metadata.Attr) bool {
		var crcs manifest.CRCs
		if crcs, bad = f.chunks(&a); len(crcs) == 0 {
			return bad == nil
		}
		s := placementOf(m, a)
		for chunk := range min(s.pieces(), uint32(crcs.Len())) {
			p := PieceID{a.Ino, chunk}
			if delete(sums, p); f.present.has(p) && len(s.order) > 0 {
				all = append(all, f.pieceSum(&s, p, stagein.CRCSum(crcs.At(int(chunk)))))
			}
		}
		return bad == nil
	})
	if err = errors.Join(bad, err); err != nil {
		return nil, err
	}
	for p, sum := range sums {
		_, a, err := f.cfg.Files.Origin(p.Ino)
		if err != nil {
			return nil, err
		}
		s := placementOf(m, a)
		if len(s.order) > 0 && p.Chunk < s.pieces() {
			all = append(all, f.pieceSum(&s, p, sum))
		}
	}
	return all, nil
}

func (f *Fill) pieceSum(s *placement, p PieceID, sum [16]byte) PieceSum {
	_, n, off := s.at(p.Chunk, f.cfg.Self)
	return PieceSum{Ino: p.Ino, Off: off, Len: n, Whole: s.a.Layout.Kind == metadata.Local, Sum: sum}
}

// Overlapping returns the checksums of the present pieces in [off, off+n) of this node's object of ino. It needs
// Config.Sums.
func (f *Fill) Overlapping(ino metadata.Ino, off, n int64) ([]PieceSum, error) {
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil || a.Size == 0 {
		return nil, err
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	if len(s.order) == 0 {
		return nil, fmt.Errorf("inode %v: no node was up in epoch %d: %w", ino, a.Layout.Epoch, syscall.EIO)
	}
	crcs, err := f.chunks(&a)
	if err != nil {
		return nil, err
	}
	var all []PieceSum
	for _, chunk := range s.overlapping(f.cfg.Self, off, n) {
		p := PieceID{ino, chunk}
		sum := f.journal.sum(p)
		if int(chunk) < crcs.Len() {
			sum = stagein.CRCSum(crcs.At(int(chunk)))
		}
		all = append(all, f.pieceSum(&s, p, sum))
	}
	return all, nil
}

// JournalSums calls see with the checksums in the journal of a fill, possibly another node's. A later checksum of a
// piece replaces an earlier one; zeros: the manifest has it.
func JournalSums(r io.Reader, see func(p PieceID, sum [16]byte)) error {
	head := make([]byte, journalHead)
	if _, err := io.ReadFull(r, head); err != nil || string(head[:len(journalMagic)]) != journalMagic {
		return fmt.Errorf("journal: no header: %w", syscall.EPROTO)
	}
	_, err := readJournal(io.MultiReader(bytes.NewReader(head), r), head, func(p PieceID, sum [16]byte) {
		if sum != droppedSum {
			see(p, sum)
		}
	})
	return err
}

// sums returns the last checksum of each piece in the journal. If a piece has none there, the manifest has it.
func (f *Fill) sums() (map[PieceID][16]byte, error) {
	r, err := os.Open(f.cfg.Journal)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	defer r.Close() // read only
	last := make(map[PieceID][16]byte)
	if _, err := readJournal(r, journalHeader(f.cfg.Digest, f.cfg.Boot), func(p PieceID, sum [16]byte) {
		if sum != [16]byte{} && sum != droppedSum {
			last[p] = sum
		}
	}); err != nil {
		return nil, fmt.Errorf("journal %s: %w", f.cfg.Journal, err)
	}
	return last, nil
}
