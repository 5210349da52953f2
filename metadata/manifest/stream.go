package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

const magic = "BIVMAN\x00\x02"

const (
	blockSize = 64 << 10  // a block that reaches this size is written
	maxBlock  = 256 << 10 // a longer block is damaged
	headSize  = 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Writer encodes records block by block.
type Writer struct {
	w      io.Writer
	sum    *xxh3.Hasher
	size   int    // a block that reaches this size is written
	block  []byte // offset of the header, and records so far
	before string
	n      uint64
	err    error
}

// NewWriter returns a Writer to w, which it does not close.
func NewWriter(w io.Writer) *Writer { return newWriter(w, blockSize) }

func newWriter(w io.Writer, size int) *Writer {
	s := &Writer{w: w, sum: xxh3.New(), size: size, block: make([]byte, headSize, size+headSize)}
	s.write([]byte(magic))
	return s
}

// Add appends r. It rejects an invalid record with its path; the other records are not affected.
func (s *Writer) Add(r Record) error {
	if s.err != nil {
		return s.err
	}
	if err := r.check(); err != nil {
		return err
	}
	s.block = r.append(s.block, s.before)
	s.before = r.Path
	s.n++
	if len(s.block) >= s.size {
		s.flush(crc32.Checksum(s.block[headSize:], castagnoli), len(s.block)-headSize)
	}
	return s.err
}

// Flush writes the records added so far as a block. It is too expensive to call for every record.
func (s *Writer) Flush() error {
	if s.err == nil && len(s.block) > headSize {
		s.flush(crc32.Checksum(s.block[headSize:], castagnoli), len(s.block)-headSize)
	}
	return s.err
}

// Close writes the last block and the end. No record can be added afterwards.
func (s *Writer) Close() error {
	if err := s.Flush(); err != nil {
		return err
	}
	s.block = binary.BigEndian.AppendUint64(s.block, s.n)
	s.flush(crc32.Checksum(s.block[headSize:], castagnoli), 0)
	if s.err != nil {
		return s.err
	}
	s.err = fmt.Errorf("manifest writer is closed: %w", syscall.EINVAL)
	return nil
}

// Digest returns the xxh3-128 of the stream so far, in hex.
func (s *Writer) Digest() string { return digest(s.sum) }

func digest(h *xxh3.Hasher) string {
	b := h.Sum128().Bytes()
	return fmt.Sprintf("%x", b[:])
}

func (s *Writer) flush(crc uint32, length int) {
	binary.BigEndian.PutUint32(s.block, uint32(length))
	binary.BigEndian.PutUint32(s.block[4:], crc)
	s.write(s.block)
	s.block, s.before = s.block[:headSize], ""
}

func (s *Writer) write(p []byte) {
	if s.err != nil {
		return
	}
	_, _ = s.sum.Write(p) // never fails
	if _, err := s.w.Write(p); err != nil {
		s.err = fmt.Errorf("manifest: %w", err)
	}
}

// Reader decodes records.
type Reader struct {
	// Sums, if set, supplies checksums of files that were unknown when their records were written.
	Sums map[metadata.Ino][16]byte

	r      io.Reader
	sum    *xxh3.Hasher
	pos    int64 // size of the block
	next   int64 // offset of the next block
	block  []byte
	d      decoder
	before string
	n      uint64
	err    error
}

// NewReader returns a Reader of r, which needs no buffering.
func NewReader(r io.Reader) *Reader { return &Reader{r: r, sum: xxh3.New()} }

// Next returns the next record; io.EOF after the last one. A stream that is truncated, altered or followed by further
// bytes is EIO.
func (s *Reader) Next() (Record, error) {
	if s.err != nil {
		return Record{}, s.err
	}
	r, err := s.read()
	if sum, ok := s.Sums[r.Attr.Ino]; ok && r.Hardlink == "" {
		r.Sum = sum
	}
	if err != nil && err != io.EOF {
		err = fmt.Errorf("manifest: block at byte %d: %w", s.pos, err)
	}
	s.err = err
	return r, err
}

// Digest returns the xxh3-128 of the bytes read so far, in hex: after io.EOF that of the whole stream.
func (s *Reader) Digest() string { return digest(s.sum) }

func (s *Reader) read() (Record, error) {
	if s.next == 0 {
		if err := s.magic(); err != nil {
			return Record{}, err
		}
	}
	if len(s.d.B) == 0 {
		if err := s.load(); err != nil {
			return Record{}, err
		}
	}
	r := s.d.record(s.before)
	if s.d.Bad {
		return Record{}, fmt.Errorf("record %d cannot be read: %w", s.n, syscall.EIO)
	}
	if err := r.check(); err != nil {
		return Record{}, fmt.Errorf("record %d: %w: %w", s.n, syscall.EIO, err)
	}
	s.before = r.Path
	s.n++
	return r, nil
}

func (s *Reader) magic() error {
	var b [len(magic)]byte
	if err := s.full(b[:]); err != nil {
		return err
	}
	if string(b[:]) != magic {
		return fmt.Errorf("%q is not the start of a manifest: %w", b, syscall.EIO)
	}
	return nil
}

// load reads the next block, or the end.
func (s *Reader) load() error {
	s.pos = s.next
	var head [headSize]byte
	if err := s.full(head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxBlock {
		return fmt.Errorf("length %d: %w", n, syscall.EIO)
	}
	end := n == 0
	if end {
		n = 8
	}
	if uint32(cap(s.block)) < n {
		s.block = make([]byte, n, max(n, blockSize+blockSize/4))
	}
	s.block = s.block[:n]
	if err := s.full(s.block); err != nil {
		return err
	}
	if crc32.Checksum(s.block, castagnoli) != binary.BigEndian.Uint32(head[4:]) {
		return fmt.Errorf("checksum: %w", syscall.EIO)
	}
	if end {
		return s.end()
	}
	s.d, s.before = decoder{varint.Decoder{B: s.block}}, ""
	return nil
}

func (s *Reader) end() error {
	if n := binary.BigEndian.Uint64(s.block); n != s.n {
		return fmt.Errorf("%d records, want %d: %w", s.n, n, syscall.EIO)
	}
	var b [1]byte
	switch n, err := io.ReadFull(s.r, b[:]); {
	case n > 0:
		return fmt.Errorf("bytes behind the end: %w", syscall.EIO)
	case err != io.EOF:
		return err
	}
	return io.EOF
}

func (s *Reader) full(p []byte) error {
	n, err := io.ReadFull(s.r, p)
	_, _ = s.sum.Write(p[:n]) // never fails
	s.next += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("cut short at byte %d: %w: %w", s.next, syscall.EIO, io.ErrUnexpectedEOF)
	}
	return err
}
