package unpack

import (
	"context"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// Range is the range [Off, End) of the unpacked data of a compressed file.
type Range struct {
	File     io.ReaderAt
	Name     string
	Kind     source.Kind
	Size     int64
	Points   RestartPoints
	Off, End int64
}

// Open starts to decode the range from the last restart point before it; nil if there is none. The pieces begin at
// that point and may extend beyond the end. Close must be called.
func (s *Range) Open(ctx context.Context, in, out *source.Pool) *Stream {
	from, to, ok, more := s.Points.around(s.Off, s.End)
	if !ok {
		return nil
	}
	begin, end := from.Byte(s.Kind), s.Size
	if more {
		end = min(end, to.Byte(s.Kind))
	}
	ctx, cancel := context.WithCancel(ctx)
	u := &Stream{kind: s.Kind, pool: out, cancel: cancel, queue: make(chan *source.Piece, queueSize), from: &from}
	u.in = &packed{from: source.ReadRegion(ctx, s.File, s.Name, min(begin, end), end, in, 2)}
	u.in.off.Store(begin)
	u.wg.Add(1)
	go u.run(ctx)
	return u
}

// decoderAt makes the decoder of what follows a restart point.
func decoderAt(ctx context.Context, kind source.Kind, in *packed, pool *source.Pool, from RestartPoint) (io.ReadCloser, error) {
	switch kind {
	case source.TarXz:
		d := newBatches(ctx, in, xzFrom(from), pool.Help)
		in.ahead = d.ahead
		return d, nil
	case source.TarZstd:
		z, err := zstd.NewReader(in, zstd.WithDecoderMaxWindow(MaxWindow), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	}
	return decoder(kind, in)
}
