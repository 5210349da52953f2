package unpack

import (
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
	Points   RestartPoints
	Off, End int64
}

// Unpack begins to unpack the stretch, from the last restart point before it on; nil if there is none.
// The pieces begin there and may go on behind the end. Close must be called.
func (s *Stretch) Unpack(ctx context.Context, in, out *source.Pool) *Unpacked {
	from, to, ok, more := s.Points.around(s.Off, s.End)
	if !ok {
		return nil
	}
	begin, end := from.Byte(s.Kind), s.Size
	if more {
		end = min(end, to.Byte(s.Kind))
	}
	ctx, cancel := context.WithCancel(ctx)
	u := &Unpacked{kind: s.Kind, pool: out, cancel: cancel, queue: make(chan *source.Piece, unpackAhead), from: &from}
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
		d := newBatches(ctx, in, xzsAt(from), pool.Help)
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
