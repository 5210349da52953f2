package unpack

import (
	"bufio"
	"context"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// Stretch is what a compressed file of some size has at [Off, End) of what it unpacks to.
type Stretch struct {
	File     io.ReaderAt
	Name     string
	Kind     source.Kind
	Size     int64
	Places   Places
	Off, End int64
}

// innerPast is how much a block of deflated data that is not the last one may be read ahead of its end, in bytes, at
// the most: it is followed by ten bits at the least, which are read with its longest symbols.
const innerPast = 8

// Unpack begins to unpack the stretch, from the place before it on; nil if there is none.
// What it gives begins there and may go on behind the end. Close must be called.
func (s *Stretch) Unpack(ctx context.Context, in, out *source.Pool) *Unpacked {
	from, to, ok, more := s.Places.around(s.Off, s.End)
	if !ok {
		return nil
	}
	begin, next, end := from.At, to.At, s.Size
	if s.Kind == source.TarXz {
		begin, _ = from.xz()
		next, _ = to.xz()
	}
	if to.Window != "" {
		next += innerPast
	}
	if more {
		end = min(end, next)
	}
	ctx, cancel := context.WithCancel(ctx)
	u := &Unpacked{kind: s.Kind, pool: out, cancel: cancel, queue: make(chan *source.Piece, unpackAhead), from: &from}
	u.in = &packed{from: source.ReadRegion(ctx, s.File, s.Name, min(begin, end), end, in, 2)}
	u.in.off.Store(begin)
	u.wg.Add(1)
	go u.run(ctx)
	return u
}

// decoderAt makes the reader of what is packed from a place on.
func decoderAt(ctx context.Context, kind source.Kind, in *packed, pool *source.Pool, from Place) (io.ReadCloser, error) {
	switch kind {
	case source.TarXz:
		d := newBatches(ctx, in, xzsAt(from), pool.Help)
		in.ahead = d.ahead
		return d, nil
	case source.TarZstd:
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(MaxWindow), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case source.TarGzip:
		if from.Window == "" {
			break
		}
		buf := bufio.NewReaderSize(in, 64<<10)
		in.ahead = buf.Buffered
		z, err := gunzipAt(buf, from)
		return io.NopCloser(z), err
	}
	return decoder(kind, in)
}
