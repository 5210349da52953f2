package stagein

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

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// planZip reads the central directory and cuts the archive between members.
func (cfg *PlanConfig) planZip(p *Plan, info source.Info, nodes []metadata.NodeID) error {
	f, err := cfg.FS.Open(string(p.Source))
	if err != nil {
		return fmt.Errorf("%s: %w", p.Source, err)
	}
	x, err := source.ReadZip(f, string(p.Source), info.Size, p.Head)
	if e := f.Close(); err == nil && e != nil {
		err = fmt.Errorf("%s: %w", p.Source, e)
	}
	if err != nil {
		return err
	}
	p.Size, p.Read = info.Size, x.Read+int64(len(p.Head))
	n := min(int64(len(nodes)), max(x.Start/cfg.Region, 1))
	p.Parts = zipParts(x, n, int64(len(p.Head)))
	for i := range p.Parts {
		p.Parts[i].Node = nodes[i]
	}
	p.Parts[0].Off = min(int64(len(p.Head)), p.Parts[0].End)
	p.Parts[0].Bytes += p.Read - p.Parts[0].Off
	need := make(map[metadata.NodeID]int64, len(nodes))
	for i := range x.Items {
		it := &x.Items[i]
		if it.Size > cfg.Stripe {
			for _, id := range nodes {
				need[id] += it.Size / int64(len(nodes))
			}
			continue
		}
		need[cfg.Map.FileOwner(it.Path)] += it.Size
	}
	return cfg.room(p, need)
}

// zipParts cuts an archive into at most n ranges of about as many bytes; a cut
// is where a member begins, and not before least.
func zipParts(x *source.ZipIndex, n, least int64) []Part {
	var parts []Part
	first, off := 0, int64(0)
	cut := func(last int, end int64) {
		parts = append(parts, Part{Index: uint16(len(parts)), Off: off, End: end, Bytes: end - off, Items: x.Items[first:last]})
		first, off = last, end
	}
	for i := 1; i < len(x.Items) && int64(len(parts)) < n-1; i++ {
		at, before := x.Items[i].Off, x.Items[i-1].Off
		want := off + (x.Start-off)/(n-int64(len(parts)))
		if at < want || at < least {
			continue
		}
		if want-before < at-want && before > off && before >= least {
			cut(i-1, before)
			continue
		}
		cut(i, at)
	}
	cut(len(x.Items), x.Start)
	return parts
}

// zipReader stages the members in a range of a zip archive, one after another.
type zipReader struct {
	s    *Share
	ctx  context.Context
	t    tape
	push *pusher
	z    source.Inflater
	out  *source.Piece // that is being filled with what is unpacked
	bad  error         // of the tape, while the inflater reads it
	half *object       // of the present member, once it has one
}

// runZip stages a range of a zip archive.
func (s *Share) runZip(ctx context.Context) error {
	p, part := s.cfg.Plan, &s.cfg.Part
	was := source.Info{Size: p.Size, Mtime: p.Mtime}
	f, err := s.open(string(p.Source), was)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	from := source.ReadRegion(ctx, f, string(p.Source), part.Off, part.End, s.pool, readAhead)
	defer from.Close()
	z := &zipReader{s: s, ctx: ctx, t: tape{pos: part.Off, more: from.Next}, push: s.newPusher(ctx)}
	if part.Index == 0 {
		s.count.source.Add(p.Read) // by MakePlan, for all
		z.t.pos = 0
		z.t.queue = []*source.Piece{source.Bytes(p.Head[:part.Off], 0)}
	}
	err = z.run()
	z.t.close()
	if z.out != nil {
		z.out.Release()
	}
	if err != nil {
		z.push.cancel()
	}
	if e := z.push.wait(); e != nil && (err == nil || isCanceled(err)) {
		err = e
	}
	if err != nil {
		return err
	}
	return unchanged(f, string(p.Source), was)
}

func (z *zipReader) run() error {
	items, end := z.s.cfg.Part.Items, z.s.cfg.Part.End
	for i := range items {
		next := end
		if i+1 < len(items) {
			next = items[i+1].Off
		}
		it := items[i]
		if !z.s.wants(&it) {
			continue // its bytes are gone over with what is before the next
		}
		if err := z.try(&it, next); err != nil {
			return err
		}
	}
	return z.t.skip(end - z.t.pos) // nothing that counts; it is read all the same
}

// try stages a member, or leaves it out if it cannot be read and that is asked
// for: then what it stored is taken back, for which nothing may be under way.
func (z *zipReader) try(it *source.Item, next int64) error {
	named := func(err error) error {
		return fmt.Errorf("member %q at offset %d: %w", it.Path, it.Off, err)
	}
	if z.s.cfg.Plan.OnError != OnErrorSkip {
		if err := z.member(it, next); err != nil {
			return named(err)
		}
		return nil
	}
	all := z.push
	z.push = z.s.newPusher(z.ctx)
	err := z.member(it, next)
	if err != nil {
		z.push.cancel()
	}
	if e := z.push.wait(); e != nil && (err == nil || isCanceled(err)) {
		err = e
	}
	z.push = all
	if err == nil {
		return nil
	}
	if err := z.s.skip(it.Path, named(err)); err != nil || z.half == nil {
		return err
	}
	return z.s.takeBack(z.ctx, z.half)
}

// member stages one, of which all lies before offset next.
func (z *zipReader) member(it *source.Item, next int64) error {
	if err := z.ctx.Err(); err != nil {
		return err
	}
	z.half = nil
	if err := z.t.skip(it.Off - z.t.pos); err != nil {
		return err
	}
	b, err := z.bytes(source.ZipLocalSize)
	if err != nil {
		return err
	}
	n, extra, err := it.Local(b)
	if err != nil {
		return err
	}
	if z.t.pos+n+extra+it.Zip.Size > next {
		return fmt.Errorf("it overlaps what begins at offset %d: %w", next, syscall.EBADMSG)
	}
	name, err := z.bytes(n)
	if err == nil {
		err = it.LocalName(name)
	}
	if err == nil {
		err = z.t.skip(extra)
	}
	if err == nil {
		err = z.stage(it)
	}
	if err != nil || !source.Described(b) {
		return err
	}
	d, err := z.bytes(min(8, next-z.t.pos))
	if err != nil {
		return err
	}
	return it.Descriptor(d)
}

// bytes is a copy of the next n bytes.
func (z *zipReader) bytes(n int64) ([]byte, error) {
	b := make([]byte, 0, n)
	for int64(len(b)) < n {
		p, _, err := z.t.take(n - int64(len(b)))
		if err != nil {
			return nil, err
		}
		b = append(b, p...)
	}
	return b, nil
}

// stage stages the member whose data is next.
func (z *zipReader) stage(it *source.Item) error {
	if it.Is(source.TypeDir) {
		return z.record(it, nil, [16]byte{})
	}
	if it.Is(source.TypeSymlink) {
		return z.symlink(it)
	}
	o, err := z.s.place(it)
	if err != nil {
		return err
	}
	z.half = o
	sum := summer{size: it.Size}
	pos := int64(0)
	err = z.data(it, func(b []byte, piece *source.Piece) error {
		sum.write(b)
		at := pos
		pos += int64(len(b))
		return z.push.put(o, b, piece, at)
	})
	if err != nil {
		return err
	}
	z.s.count.files.Add(1)
	return z.record(it, o, sum.sum128())
}

func (z *zipReader) record(it *source.Item, o *object, sum [16]byte) error {
	if o == nil {
		var err error
		if o, err = z.s.place(it); err != nil {
			return err
		}
	}
	rec := z.s.recordOf(it, o)
	rec.Sum = sum
	return z.s.rec.add(rec)
}

func (z *zipReader) symlink(it *source.Item) error {
	var target strings.Builder
	err := z.data(it, func(b []byte, _ *source.Piece) error {
		_, err := target.Write(b)
		return err
	})
	if err != nil {
		return err
	}
	link := *it
	if link.Target = target.String(); strings.ContainsRune(link.Target, 0) {
		return fmt.Errorf("a symbolic link to %q: %w", link.Target, syscall.EINVAL)
	}
	link.Size = 0
	return z.record(&link, nil, [16]byte{})
}

// data gives all data of a member to emit, in order, and checks it.
func (z *zipReader) data(it *source.Item, emit func([]byte, *source.Piece) error) error {
	crc := uint32(0)
	each := func(b []byte, piece *source.Piece) error {
		crc = crc32.Update(crc, crc32.IEEETable, b)
		return emit(b, piece)
	}
	var err error
	if it.Zip.Method == source.ZipStored {
		err = z.stored(it.Size, each)
	} else {
		err = z.inflate(it, each)
	}
	if err == nil && crc != it.Zip.CRC {
		err = fmt.Errorf("its data has checksum %08x, the archive says %08x: it is damaged: %w", crc, it.Zip.CRC, syscall.EBADMSG)
	}
	return err
}

func (z *zipReader) stored(n int64, each func([]byte, *source.Piece) error) error {
	for n > 0 {
		b, piece, err := z.t.take(n)
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

// inflate unpacks to exactly the size that the directory says, from exactly
// the bytes that it says.
func (z *zipReader) inflate(it *source.Item, each func([]byte, *source.Piece) error) error {
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

// leastRest is how much of a buffer is worth to be filled, in bytes.
const leastRest = 64 << 10

// fill unpacks the next bytes, at most n, into the piece that is being filled.
func (z *zipReader) fill(n int64) ([]byte, error) {
	if z.out != nil && int64(len(z.out.Rest())) < min(n, leastRest) {
		z.out.Release()
		z.out = nil
	}
	if z.out == nil {
		p, err := z.s.pool.Get(z.ctx)
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

// damaged is what an error of the inflater means.
func (z *zipReader) damaged(err error) error {
	if z.bad != nil {
		return z.bad
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("its data ends before the size that the archive says: it is damaged: %w", syscall.EBADMSG)
	}
	return fmt.Errorf("its data cannot be unpacked (%v): it is damaged: %w", err, syscall.EBADMSG)
}

// deflated has the inflater read the next n bytes; left is how many of them it
// has not.
func (z *zipReader) deflated(n int64) (left func() int64, err error) {
	if n > 0 {
		if err := z.t.fill(); err != nil {
			return nil, err
		}
	}
	if n == 0 || int64(len(z.t.cur.B)-z.t.at) >= n {
		var b []byte
		if n > 0 {
			b, _, _ = z.t.take(n) // of what is there
		}
		r := bytes.NewReader(b)
		return func() int64 { return int64(r.Len()) }, z.z.Reset(r)
	}
	rest := &io.LimitedReader{R: z, N: n}
	r := bufio.NewReaderSize(rest, leastRest)
	return func() int64 { return rest.N + int64(r.Buffered()) }, z.z.Reset(r)
}

// Read gives the inflater what the tape has.
func (z *zipReader) Read(b []byte) (int, error) {
	p, _, err := z.t.take(int64(len(b)))
	if err != nil {
		z.bad = err
	}
	return copy(b, p), err
}
