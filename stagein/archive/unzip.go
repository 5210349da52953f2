package archive

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// Unzipper unpacks members of a zip archive, one after another, from a BlockReader.
type Unzipper struct {
	Ctx  context.Context
	Pool *source.Pool
	From BlockReader
	z    zip.Inflater
	out  *source.Piece // buffer being filled with unpacked bytes
	bad  error         // error of From while the inflater reads it
}

func (z *Unzipper) Close() {
	z.From.Close()
	if z.out != nil {
		z.out.Release()
		z.out = nil
	}
}

// Member advances to a member, which must lie wholly before offset next, checks the headers around its data, and calls
// stage to read the data.
func (z *Unzipper) Member(it *source.Item, next int64, stage func() error) error {
	if err := z.Ctx.Err(); err != nil {
		return err
	}
	if err := z.From.Skip(it.Off - z.From.Pos); err != nil {
		return err
	}
	b, err := z.bytes(zip.LocalSize)
	if err != nil {
		return err
	}
	n, extra, err := zip.CheckLocal(it, b)
	if err != nil {
		return err
	}
	if z.From.Pos+n+extra+it.Zip.Size > next {
		return fmt.Errorf("it overlaps what begins at offset %d: %w", next, syscall.EBADMSG)
	}
	name, err := z.bytes(n)
	if err == nil {
		err = zip.CheckName(it, name)
	}
	if err == nil {
		err = z.From.Skip(extra)
	}
	if err == nil {
		err = stage()
	}
	if err != nil || !zip.HasDescriptor(b) {
		return err
	}
	d, err := z.bytes(min(8, next-z.From.Pos))
	if err != nil {
		return err
	}
	return zip.CheckDescriptor(it, d)
}

// Target reads the target of a symbolic link, which is the member's data.
func (z *Unzipper) Target(link *source.Item) error {
	var target strings.Builder
	err := z.Data(link, func(b []byte, _ *source.Piece) error {
		_, err := target.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	if link.Target = target.String(); strings.ContainsRune(link.Target, 0) {
		return fmt.Errorf("a symbolic link to %q: %w", link.Target, syscall.EINVAL)
	}
	link.Size = 0
	return nil
}

// bytes returns a copy of the next n bytes.
func (z *Unzipper) bytes(n int64) ([]byte, error) {
	b := make([]byte, 0, n)
	for int64(len(b)) < n {
		p, _, err := z.From.Take(n - int64(len(b)))
		if err != nil {
			return nil, err
		}
		b = append(b, p...)
	}
	return b, nil
}

// Data calls emit with all data of a member, in order, and checks its size and CRC-32.
func (z *Unzipper) Data(it *source.Item, emit func([]byte, *source.Piece) error) error {
	crc := uint32(0)
	each := func(b []byte, piece *source.Piece) error {
		crc = crc32.Update(crc, crc32.IEEETable, b)
		return emit(b, piece)
	}
	var err error
	if it.Zip.Method == zip.Stored {
		err = z.stored(it.Size, each)
	} else {
		err = z.inflate(it, each)
	}
	if err == nil && crc != it.Zip.CRC {
		err = fmt.Errorf("its data has checksum %08x, the archive says %08x: it is damaged: %w", crc, it.Zip.CRC, syscall.EBADMSG)
	}
	return err
}

func (z *Unzipper) stored(n int64, each func([]byte, *source.Piece) error) error {
	for n > 0 {
		b, piece, err := z.From.Take(n)
		if err != nil {
			return err
		}
		if err := each(b, piece); err != nil {
			return err
		}
		n -= int64(len(b))
	}
	return nil
}

// inflate unpacks exactly as many bytes as the directory states, from exactly as many as it states.
func (z *Unzipper) inflate(it *source.Item, each func([]byte, *source.Piece) error) error {
	left, err := z.deflated(it.Zip.Size)
	if err != nil {
		return err
	}
	for n := int64(0); n < it.Size; {
		b, err := z.fill(it.Size - n)
		if err != nil {
			return z.damaged(err)
		}
		if err := each(b, z.out); err != nil {
			return err
		}
		n += int64(len(b))
	}
	var more [1]byte
	switch n, err := io.ReadFull(&z.z, more[:]); {
	case n > 0:
		return fmt.Errorf("unpacks to more than the %d bytes that the archive says: %w", it.Size, syscall.EBADMSG)
	case err != io.EOF:
		return z.damaged(err)
	case left() > 0:
		return fmt.Errorf("its data ends %d bytes before the archive says: %w", left(), syscall.EBADMSG)
	}
	return nil
}

// leastRest is the least room in a buffer, in bytes, with which filling continues.
const leastRest = 64 << 10

// fill unpacks the next bytes, at most n, into the current piece.
func (z *Unzipper) fill(n int64) ([]byte, error) {
	if z.out != nil && int64(len(z.out.Rest())) < min(n, leastRest) {
		z.out.Release()
		z.out = nil
	}
	if z.out == nil {
		z.From.wait()
		p, err := z.Pool.Get(z.Ctx)
		if err != nil {
			z.bad = err
			return nil, err
		}
		z.out = p
	}
	b := z.out.Rest()
	b = b[:min(int64(len(b)), n)]
	if _, err := io.ReadFull(&z.z, b); err != nil {
		return nil, err
	}
	z.out.Extend(len(b))
	return b, nil
}

// damaged returns the error to report for an error of the inflater.
func (z *Unzipper) damaged(err error) error {
	if z.bad != nil {
		return z.bad
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("its data ends before the size that the archive says: it is damaged: %w", syscall.EBADMSG)
	}
	return fmt.Errorf("its data cannot be unpacked (%v): it is damaged: %w", err, syscall.EBADMSG)
}

// deflated makes the inflater read the next n bytes; left returns how many of them are unread.
func (z *Unzipper) deflated(n int64) (left func() int64, err error) {
	if n > 0 {
		if err := z.From.fill(); err != nil {
			return nil, err
		}
	}
	if n == 0 || int64(len(z.From.cur.B)-z.From.at) >= n {
		var b []byte
		if n > 0 {
			b, _, _ = z.From.Take(n) // the rest of the window
		}
		r := bytes.NewReader(b)
		return func() int64 { return int64(r.Len()) }, z.z.Reset(r)
	}
	rest := &io.LimitedReader{R: z, N: n}
	r := bufio.NewReaderSize(rest, leastRest)
	return func() int64 { return rest.N + int64(r.Buffered()) }, z.z.Reset(r)
}

// Read implements io.Reader for the inflater.
func (z *Unzipper) Read(b []byte) (int, error) {
	p, _, err := z.From.Take(int64(len(b)))
	if err != nil {
		z.bad = err
	}
	return copy(b, p), err
}
