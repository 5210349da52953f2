package fill

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
)

// PieceID identifies the unit of fetching: a file that is whole on one node, or a chunk of a striped file.
type PieceID struct {
	Ino   metadata.Ino
	Chunk uint32 // of the file; 0 for a file that is whole on one node
}

// MarshalJSON writes [ino, chunk].
func (p PieceID) MarshalJSON() ([]byte, error) {
	return json.Marshal([2]uint64{uint64(p.Ino), uint64(p.Chunk)})
}

// UnmarshalJSON reads the format of MarshalJSON.
func (p *PieceID) UnmarshalJSON(b []byte) error {
	var v [2]uint64
	err := json.Unmarshal(b, &v)
	p.Ino, p.Chunk = metadata.Ino(v[0]), uint32(v[1])
	return err
}

// pieceSet is a set of pieces: a bit per file, because inode numbers have no gaps, and a map for chunks after the
// first.
type pieceSet struct {
	mu     sync.Mutex
	bits   map[uint16][]uint64  // guarded by mu; by part number of the inode
	chunks map[PieceID]struct{} // guarded by mu; pieces with a nonzero chunk number
	n      int64                // guarded by mu; number of pieces
}

func newPieceSet() *pieceSet {
	return &pieceSet{bits: make(map[uint16][]uint64), chunks: make(map[PieceID]struct{})}
}

func (r *pieceSet) has(p PieceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holds(p)
}

// holds is has for callers that hold mu.
func (r *pieceSet) holds(p PieceID) bool {
	if p.Chunk > 0 {
		_, ok := r.chunks[p]
		return ok
	}
	w := r.bits[p.Ino.Part()]
	i := p.Ino.Seq()
	return int(i/64) < len(w) && w[i/64]>>(i%64)&1 != 0
}

// add adds p and reports whether it was absent.
func (r *pieceSet) add(p PieceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.holds(p) {
		return false
	}
	r.n++
	if p.Chunk > 0 {
		r.chunks[p] = struct{}{}
		return true
	}
	i, part := p.Ino.Seq(), p.Ino.Part()
	for int(i/64) >= len(r.bits[part]) {
		r.bits[part] = append(r.bits[part], make([]uint64, max(len(r.bits[part]), 64))...)
	}
	r.bits[part][i/64] |= 1 << (i % 64)
	return true
}

// remove removes p and reports whether it was in the set.
func (r *pieceSet) remove(p PieceID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.holds(p) {
		return false
	}
	r.n--
	if p.Chunk > 0 {
		delete(r.chunks, p)
		return true
	}
	i := p.Ino.Seq()
	r.bits[p.Ino.Part()][i/64] &^= 1 << (i % 64)
	return true
}

// Has reports whether [off, off+n) of this node's object of ino can be read at once, as far as a cheap check can tell.
func (f *Fill) Has(ino metadata.Ino, off, n int64) bool {
	if !f.striped {
		return f.present.has(PieceID{Ino: ino})
	}
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil {
		return false
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	ps := s.overlapping(f.cfg.Self, off, n)
	return len(ps) > 0 && !slices.ContainsFunc(ps, func(chunk uint32) bool { return !f.present.has(PieceID{ino, chunk}) })
}

// The journal of a fill records which pieces are on this node's disk, so that a restarted daemon fetches only pieces
// that were in flight.
//
//	magic    8 bytes   "BIVFILL" 01
//	of       16 bytes  xxh3-128 of the manifest's digest and of the boot
//	entries  32 bytes  ino 8, chunk 4, sum 16 (xxh3-128 of the piece; 0 is in the manifest), CRC-32C of these 28
//
// The sum droppedSum records that the piece is no longer here: it is damaged, and may be half overwritten. Numbers are
// big endian. An entry is written after its piece. A truncated or damaged entry at the end was being written when the
// daemon died. Nothing is synced: the writes of a killed process survive, and after a reboot the boot ID differs, so
// that the journal is void.
const (
	journalMagic = "BIVFILL\x01"
	journalHead  = 24
	journalEntry = 32
)

// droppedSum is the tombstone of a piece.
var droppedSum = [16]byte([]byte("piece is dropped"))

// journalFile is the part of os.File that the journal uses.
type journalFile interface {
	io.WriterAt
	io.Closer
}

type journal struct {
	mu  sync.Mutex
	f   journalFile          // guarded by mu
	off int64                // guarded by mu; where the next entry goes
	has map[PieceID][16]byte // guarded by mu; checksums by piece; nil: not kept in memory
}

// openJournal opens the journal at path and calls see for each of its entries. It starts a new journal if the one at
// path belongs to another manifest or boot.
func openJournal(path, digest, boot string, see func(p PieceID, sum [16]byte)) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	head := journalHeader(digest, boot)
	good, err := readJournal(f, head, see)
	if err == nil && good == 0 {
		_, err = f.WriteAt(head, 0)
		good = journalHead
	}
	if err == nil {
		err = f.Truncate(good)
	}
	if err != nil {
		_ = f.Close() // nothing that counts was written
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	return &journal{f: f, off: good}, nil
}

func journalHeader(digest, boot string) []byte {
	of := xxh3.HashString128(digest + "\x00" + boot).Bytes()
	return append([]byte(journalMagic), of[:]...)
}

// readJournal returns how many bytes of a journal are valid, or 0 if none are.
func readJournal(r io.Reader, head []byte, see func(p PieceID, sum [16]byte)) (int64, error) {
	b := make([]byte, 1024*journalEntry)
	n, err := io.ReadFull(r, b[:len(head)])
	if truncated(err) || err == nil && string(b[:n]) != string(head) {
		return 0, nil
	}
	good := int64(n)
	for err == nil {
		n, err = io.ReadFull(r, b)
		for e := b[:n]; len(e) >= journalEntry; e = e[journalEntry:] {
			p, sum, ok := parseEntry(e[:journalEntry])
			if !ok {
				return good, nil
			}
			good += journalEntry
			see(p, sum)
		}
	}
	if truncated(err) {
		err = nil
	}
	return good, err
}

func truncated(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }

func parseEntry(e []byte) (p PieceID, sum [16]byte, ok bool) {
	copy(sum[:], e[12:28])
	p = PieceID{metadata.Ino(binary.BigEndian.Uint64(e)), binary.BigEndian.Uint32(e[8:])}
	return p, sum, crc32.Checksum(e[:28], archive.Castagnoli) == binary.BigEndian.Uint32(e[28:])
}

func entryOf(p PieceID, sum [16]byte) []byte {
	e := binary.BigEndian.AppendUint64(make([]byte, 0, journalEntry), uint64(p.Ino))
	e = append(binary.BigEndian.AppendUint32(e, p.Chunk), sum[:]...)
	return binary.BigEndian.AppendUint32(e, crc32.Checksum(e, archive.Castagnoli))
}

func (j *journal) add(p PieceID, sum [16]byte) error {
	return j.addAll([]stored{{PieceID: p, sum: sum}})
}

// addAll adds entries in one write. If the write fails, none of them counts.
func (j *journal) addAll(all []stored) error {
	b := make([]byte, 0, len(all)*journalEntry)
	for i := range all {
		b = append(b, entryOf(all[i].PieceID, all[i].sum)...)
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := j.f.WriteAt(b, j.off); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.off += int64(len(b))
	for i := range all {
		if j.has != nil && all[i].sum != droppedSum {
			j.has[all[i].PieceID] = all[i].sum
		}
	}
	return nil
}

// sum returns the checksum of a piece, if checksums are kept in memory.
func (j *journal) sum(p PieceID) [16]byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.has[p]
}

func (j *journal) close() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.f.Close()
}
