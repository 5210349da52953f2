package stagein

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/varint"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// What ShareConfig.Places gets is for each note the number of a tar, times two, and one more if these are all
// of its places; then how many bytes follow, each as an unsigned varint; then unpack.Places. A tar of which there
// are not all is being read: its notes follow each other.

// note writes down the places that were found since the last mark, and says in a mark how much was written.
func (x *spiller) note(m *Mark) error {
	if x == nil {
		return nil
	}
	if x.from != nil {
		if err := x.write(x.from.Fresh(), false); err != nil {
			return err
		}
	}
	m.Places, m.None = x.noted, x.none
	return nil
}

// write writes down places of the tar that is being read, or all of them.
func (x *spiller) write(ps unpack.Places, all bool) error {
	if x.s.cfg.Places == nil || len(ps) == 0 {
		return nil
	}
	places := ps.Append(nil)
	head := uint64(x.number) << 1
	if all {
		head |= 1
	}
	b := binary.AppendUvarint(nil, head)
	b = binary.AppendUvarint(b, uint64(len(places)))
	return x.put(append(b, places...))
}

func (x *spiller) put(b []byte) error {
	if _, err := x.s.cfg.Places.Write(b); err != nil {
		return fmt.Errorf("places in compressed tars: %w", err)
	}
	x.noted += int64(len(b))
	return nil
}

// recall takes over what was written down before a mark.
func (x *spiller) recall(m *Mark, from io.Reader) error {
	if x == nil {
		return nil
	}
	x.none = m.None
	for i, a := range x.s.cfg.Part.Archives[:m.Next] {
		if !slices.ContainsFunc(m.Open, func(b Begun) bool { return b.Archive == i }) {
			x.past += a.Size
		}
	}
	if m.Places == 0 {
		return nil
	}
	if from == nil || x.s.cfg.Places == nil {
		return fmt.Errorf("%d bytes of them are not there: %w", m.Places, syscall.EINVAL)
	}
	b, err := io.ReadAll(io.LimitReader(from, m.Places))
	if err == nil && int64(len(b)) < m.Places {
		err = io.ErrUnexpectedEOF
	}
	if err == nil {
		err = x.put(b)
	}
	for d := (varint.Decoder{B: b}); err == nil && len(d.B) > 0; {
		err = x.parse(&d)
	}
	return err
}

// parse takes over a note.
func (x *spiller) parse(d *varint.Decoder) error {
	head := d.Uvarint()
	b := d.Bytes(d.Uvarint())
	number := uint32(head >> 1)
	ps, err := unpack.ParsePlaces(b)
	if d.Bad || uint64(number) != head>>1 {
		err = syscall.EPROTO
	}
	if err != nil {
		return err
	}
	if head&1 != 0 {
		x.places[number] = b
		delete(x.before, number)
		return nil
	}
	x.before[number] = append(x.before[number], ps...)
	return nil
}

// placesOf is the places that an earlier try has found in a tar of which it has not found all.
func (x *spiller) placesOf(number uint32) unpack.Places {
	if x == nil {
		return nil
	}
	return x.before[number]
}
