package unpack

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/varint"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// RestartPoint is an offset from which a compressed file can be decoded without what precedes it: the start of a
// zstd frame, a gzip member or an xz block. It is JSON.
type RestartPoint struct {
	At  int64 `json:"at"`  // in the file, in bytes; for xz the encoding of xzAt
	Off int64 `json:"off"` // in the unpacked data
}

// xzAt encodes the offset of an xz block and the checksum type of its stream.
func xzAt(off int64, check byte) int64 { return off<<4 | int64(check) }

// xz decodes At as encoded by xzAt.
func (p RestartPoint) xz() (off int64, check byte) { return p.At >> 4, byte(p.At & 15) }

// Check rejects a point that is impossible in a file of that kind and size.
func (p RestartPoint) Check(kind source.Kind, size int64) error {
	if !HasRestartPoints(kind) || p.At < 0 || p.Off < 0 || p.Off > pointEnd || p.Byte(kind) > size {
		return fmt.Errorf("a compressed file of %d bytes cannot be unpacked from %d on: %w", size, p.At, syscall.EPROTO)
	}
	return nil
}

// Byte is the offset in the file at which to read.
func (p RestartPoint) Byte(kind source.Kind) int64 {
	if kind == source.TarXz {
		off, _ := p.xz()
		return off
	}
	return p.At
}

// Begin is the offset of the first piece in the unpacked data: pieces begin at tar blocks.
func (p RestartPoint) Begin() int64 { return source.Padded(p.Off) }

// HasRestartPoints reports whether a kind of file may have restart points in its middle.
func HasRestartPoints(k source.Kind) bool {
	return k == source.TarGzip || k == source.TarZstd || k == source.TarXz
}

// RestartPoints are restart points of a file, in order.
type RestartPoints []RestartPoint

const (
	maxPoints = 1 << 16 // limit of points per file; beyond it the spacing is doubled
	pointEnd  = 1 << 62 // more than any offset
)

// Append encodes points, each as two unsigned varints: the differences to the previous one.
func (ps RestartPoints) Append(b []byte) []byte {
	var last RestartPoint
	for _, p := range ps {
		b = binary.AppendUvarint(b, uint64(p.At-last.At))
		b = binary.AppendUvarint(b, uint64(p.Off-last.Off))
		last = p
	}
	return b
}

// ParseRestartPoints decodes what Append encoded. Both offsets increase from point to point.
func ParseRestartPoints(b []byte) (RestartPoints, error) {
	var all RestartPoints
	var p RestartPoint
	for d := (varint.Decoder{B: b}); len(d.B) > 0; {
		at, off := d.Bounded(uint64(pointEnd-p.At)), d.Bounded(uint64(pointEnd-p.Off))
		if d.Bad || len(all) > 0 && (at == 0 || off == 0) || len(all) == maxPoints {
			return nil, fmt.Errorf("restart point %d of a compressed file: %w", len(all), syscall.EPROTO)
		}
		p = RestartPoint{p.At + int64(at), p.Off + int64(off)}
		all = append(all, p)
	}
	return all, nil
}

// Before is the unpacked offset of the last point at or before off; false if there is none.
func (ps RestartPoints) Before(off int64) (int64, bool) {
	p, _, ok, _ := ps.around(off, off+1)
	return p.Off, ok
}

// around is the last point at or before off (ok), and the first one at or after end (more).
func (ps RestartPoints) around(off, end int64) (from, to RestartPoint, ok, more bool) {
	i := sort.Search(len(ps), func(i int) bool { return ps[i].Off > off }) - 1
	if i < 0 {
		return RestartPoint{}, RestartPoint{}, false, false
	}
	j := i + 1 + sort.Search(len(ps)-i-1, func(k int) bool { return ps[i+1+k].Off >= end })
	if j < len(ps) {
		return ps[i], ps[j], true, true
	}
	return ps[i], RestartPoint{}, true, false
}

// pointList collects restart points while a file is decoded.
type pointList struct {
	mu     sync.Mutex
	apart  int64         // guarded by mu; minimal distance of two points, in bytes
	all    RestartPoints // guarded by mu
	last   int64         // guarded by mu; Off of the last point seen
	recent RestartPoints // guarded by mu; those that Restart may still return
}

func newPointList(apart int64) *pointList { return &pointList{apart: apart, last: -1} }

func (l *pointList) see(p RestartPoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.Off <= l.last {
		return // seen before, or nothing lies between them
	}
	l.last = p.Off
	if n := len(l.recent); n == 0 && p.Off > 0 || n > 0 && p.Off-l.recent[n-1].Off >= l.apart {
		l.recent = append(l.recent, p)
	}
	for l.far(p) && len(l.all) == maxPoints {
		l.apart *= 2
		l.thin()
	}
	if l.far(p) {
		l.all = append(l.all, p)
	}
}

// far reports whether p is far enough from the last point kept.
func (l *pointList) far(p RestartPoint) bool {
	return len(l.all) == 0 || p.Off-l.all[len(l.all)-1].Off >= l.apart
}

// thin drops points that are too close to each other.
func (l *pointList) thin() {
	all := l.all
	l.all = all[:0]
	for _, p := range all {
		if l.far(p) {
			l.all = append(l.all, p)
		}
	}
}

// before is the last recent point from which off can be reached. It drops older ones.
func (l *pointList) before(off int64) *RestartPoint {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.recent) > 1 && l.recent[1].Begin() <= off {
		l.recent = l.recent[1:]
	}
	if len(l.recent) == 0 || l.recent[0].Begin() > off {
		return nil
	}
	p := l.recent[0]
	return &p
}

// OpenWithPoints is Open that collects restart points with a minimal distance.
func OpenWithPoints(ctx context.Context, kind source.Kind, head []byte, from *source.Region, pool *source.Pool, apart int64) *Stream {
	return unpack(ctx, kind, head, from, pool, newPointList(apart))
}

// OpenAt is OpenWithPoints of the rest of a file that begins with head: from reads from p.Byte on. Of the points
// before p only the beginning is collected.
func OpenAt(ctx context.Context, kind source.Kind, s RestartPoint, head []byte, from *source.Region, pool *source.Pool, apart int64) *Stream {
	list := newPointList(apart)
	list.see(firstPoint(kind, head))
	list.recent = RestartPoints{s}
	ctx, cancel := context.WithCancel(ctx)
	u := &Stream{kind: kind, pool: pool, cancel: cancel, queue: make(chan *source.Piece, queueSize), list: list, start: &s}
	u.in = &packed{from: from}
	u.in.off.Store(s.Byte(kind))
	u.begin(ctx)
	return u
}

// decoderFrom makes the decoder of everything behind u.start.
func (u *Stream) decoderFrom(ctx context.Context) (io.ReadCloser, error) {
	f, err := formatOf(u.kind, sizesFor(u.pool.Room()*u.pool.Size()), cap(u.pool.Help)+1)
	if err == nil && f == nil {
		err = fmt.Errorf("%q has no restart points: %w", u.kind, syscall.EINVAL)
	}
	if err != nil {
		return nil, err
	}
	d := inBatches(ctx, u.kind, u.in, f, u.pool)
	d.points, d.pos = u.list, u.start.Off
	if f, ok := f.(*xzFormat); ok {
		f.at = xzFrom(*u.start).at
	}
	return d, nil
}

// Restart is the point from which decoding can be resumed to reach off, which is not before the end of the last
// piece returned by Next; nil is the beginning of the file.
func (u *Stream) Restart(off int64) *RestartPoint {
	if u.list == nil {
		return nil
	}
	return u.list.before(off)
}

// RestartPoints returns the points found so far.
func (u *Stream) RestartPoints() RestartPoints {
	if u.list == nil {
		return nil
	}
	u.list.mu.Lock()
	defer u.list.mu.Unlock()
	return slices.Clone(u.list.all)
}

// firstPoint is the restart point at the beginning of a file.
func firstPoint(kind source.Kind, head []byte) RestartPoint {
	if kind == source.TarXz && len(head) >= xzHead {
		return RestartPoint{At: xzAt(xzHead, head[7])}
	}
	return RestartPoint{}
}

// noEnd turns an unexpected io.EOF into an error.
func noEnd(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
