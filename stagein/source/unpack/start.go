package unpack

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// Start is a place from which a compressed file is unpacked to its very end, with what is known there of
// the checksums that come behind it. It is JSON.
type Start struct {
	Place
	Sum  uint32 // of the member's bytes before it
	Size uint32 // of the member's bytes before it
}

// startJSON is a Start as JSON: a window is no text.
type startJSON struct {
	At     int64  `json:"at"`
	Off    int64  `json:"off"`
	Bit    uint8  `json:"bit,omitempty"`
	Window []byte `json:"window,omitempty"`
	Sum    uint32 `json:"sum,omitempty"`
	Size   uint32 `json:"size,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (s Start) MarshalJSON() ([]byte, error) {
	return json.Marshal(startJSON{s.At, s.Off, s.Bit, []byte(s.Window), s.Sum, s.Size})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Start) UnmarshalJSON(b []byte) error {
	var j startJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*s = Start{Place{j.At, j.Off, j.Bit, string(j.Window)}, j.Sum, j.Size}
	return nil
}

// Check refuses what cannot be a start in a file of a kind and of so many bytes.
func (s *Start) Check(kind source.Kind, size int64) error {
	if !HasPlaces(kind) || s.At < 0 || s.Off < 0 || s.Off > placeEnd || s.Bit > 7 || s.Byte(kind) > size {
		return fmt.Errorf("a compressed file of %d bytes cannot be unpacked from %d, bit %d, on: %w", size, s.At, s.Bit, syscall.EPROTO)
	}
	return nil
}

// Byte is from where on the file is read.
func (s *Start) Byte(kind source.Kind) int64 {
	if kind == source.TarXz {
		off, _ := s.xz()
		return off
	}
	return s.At
}

// Begin is where in what is unpacked the first piece begins, as no block of a tar lies in two.
func (s *Start) Begin() int64 { return source.Padded(s.Off) }

// UnpackFrom is UnpackPlaces of a file that was unpacked before, from s on: from reads what lies
// behind s.Byte, and before is the places that were found.
func UnpackFrom(ctx context.Context, kind source.Kind, s Start, before Places, from *source.Region, pool *source.Pool, apart Spacing) *Unpacked {
	list := newPlaceList(apart)
	for _, p := range before {
		list.see(Start{Place: p})
	}
	list.fresh, list.starts = nil, starts{&s}
	ctx, cancel := context.WithCancel(ctx)
	u := &Unpacked{kind: kind, pool: pool, cancel: cancel, queue: make(chan *source.Piece, unpackAhead), list: list, start: &s}
	u.in = &packed{from: from}
	u.in.off.Store(s.Byte(kind))
	u.begin(ctx)
	return u
}

// decoderFrom makes the reader of what is packed from start on.
func (u *Unpacked) decoderFrom(ctx context.Context) (io.ReadCloser, error) {
	s := u.start
	f, err := formatOf(u.kind, sizesFor(u.pool.Room()*u.pool.Size()), cap(u.pool.Help)+1, &u.list.inside)
	if err == nil && f == nil {
		err = fmt.Errorf("no start in the middle of %q: %w", u.kind, syscall.EINVAL)
	}
	if err != nil {
		return nil, err
	}
	d := inParts(ctx, u.kind, u.in, f, u.pool)
	d.places, d.pos, d.began = u.list, s.Off, s.Off
	switch f := f.(type) {
	case *xzs:
		f.at = xzsAt(s.Place).at
	case *gzips:
		if s.Window != "" {
			d.usual, err = f.goOn(d.feed, *s)
		}
	}
	return d, err
}

// noEnd is err of what must not end.
func noEnd(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Start is from where on the file is unpacked to come to off, which is not before what Next gave last; nil is from
// its beginning.
func (u *Unpacked) Start(off int64) *Start {
	if u.list == nil {
		return nil
	}
	u.list.mu.Lock()
	defer u.list.mu.Unlock()
	return u.list.starts.before(off)
}

// passed forgets what is too far before off, from where on Next gives.
func (u *Unpacked) passed(off int64) {
	if u.list == nil {
		return
	}
	u.list.mu.Lock()
	defer u.list.mu.Unlock()
	u.list.starts.before(off)
}

// Fresh is the places that were kept since it was asked last.
func (u *Unpacked) Fresh() Places {
	if u.list == nil {
		return nil
	}
	u.list.mu.Lock()
	defer u.list.mu.Unlock()
	all := u.list.fresh
	u.list.fresh = nil
	return all
}

// starts is those that were seen last, in their order.
type starts []*Start

// see takes note of one, if it is so far from the one before.
func (l *starts) see(s Start, apart int64) {
	if n := len(*l); n == 0 && s.Off > 0 || n > 0 && s.Off-(*l)[n-1].Off >= apart {
		*l = append(*l, &s)
	}
}

// before is the last one from which it is come to off, and forgets those before that; nil is none.
func (l *starts) before(off int64) *Start {
	all := *l
	for len(all) > 1 && all[1].Begin() <= off {
		all = all[1:]
	}
	*l = all
	if len(all) == 0 || all[0].Begin() > off {
		return nil
	}
	return all[0]
}
