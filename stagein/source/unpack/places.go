package unpack

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/varint"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Place is where a compressed file can be unpacked from without what is before it: a frame
// of zstd, a member of gzip, a block of xz; or a block of deflated data in the middle of a member
// of gzip, with some of what comes out before it.
type Place struct {
	At     int64  // in the file, in bytes; of xz what xzAt makes
	Off    int64  // in what it unpacks to
	Bit    uint8  // of the byte at At, with which a block of deflated data begins
	Window string // packed: the 32 KiB before Off, as far as they are used; "" is that nothing has to be known
}

// Spacing is how places are kept.
type Spacing struct {
	Apart int64 // bytes between two, at the least
	// Inside is how far apart those are that are in the middle of members of gzip, which alone cost something
	// to find, until LookInside says something else; what is less than Apart is Apart.
	Inside int64
	// Windows is how many bytes what has to be known at them takes at the most: those at which something
	// has to be are farther apart when it would be more. 0 is that it may be anything.
	Windows int64
	// Starts is that Start is asked for, too.
	Starts bool
}

// xzAt is where a block of xz is, and how the blocks of its stream are summed up.
func xzAt(off int64, check byte) int64 { return off<<4 | int64(check) }

// xz is what xzAt has made At of.
func (p Place) xz() (off int64, check byte) { return p.At >> 4, byte(p.At & 15) }

// Places is some of them, in their order.
type Places []Place

// placeMost is how many places are kept. Their distance is doubled when there are more.
const placeMost = 1 << 16

// Append writes places, each as three unsigned varints: the differences to the one before, and the length
// of its window. If that is not 0, its bit and the window follow.
func (ps Places) Append(b []byte) []byte {
	var was Place
	for _, p := range ps {
		b = binary.AppendUvarint(b, uint64(p.At-was.At))
		b = binary.AppendUvarint(b, uint64(p.Off-was.Off))
		if b = binary.AppendUvarint(b, uint64(len(p.Window))); p.Window != "" {
			b = append(append(b, p.Bit), p.Window...)
		}
		was = p
	}
	return b
}

// ParsePlaces reads what Append has written. Of two places, the later one lies behind the
// other in the file and in what that unpacks to.
func ParsePlaces(b []byte) (Places, error) {
	var all Places
	var p Place
	text := string(b) // of which all windows are parts
	for d := (varint.Decoder{B: b}); len(d.B) > 0; {
		at, off := d.Bounded(uint64(placeEnd-p.At)), d.Bounded(uint64(placeEnd-p.Off))
		bit, window := byte(0), ""
		if n := d.Uvarint(); n > 0 {
			bit = d.Byte()
			from := len(text) - len(d.B)
			window = text[from : from+len(d.Bytes(n))]
		}
		if d.Bad || len(all) > 0 && (at == 0 || off == 0) || len(all) == placeMost || bit > 7 {
			return nil, fmt.Errorf("places of a compressed file: number %d: %w", len(all), syscall.EPROTO)
		}
		p = Place{p.At + int64(at), p.Off + int64(off), bit, window}
		all = append(all, p)
	}
	return all, nil
}

// placeEnd is more than any place.
const placeEnd = 1 << 62

// Before is where in what is unpacked it is begun to come to off; false if nothing says that.
func (ps Places) Before(off int64) (int64, bool) {
	p, _, ok, _ := ps.around(off, off+1)
	return p.Off, ok
}

// Cut is the number of the place before off, and where in what is unpacked that and the next
// one are; false if one of them is not there.
func (ps Places) Cut(off int64) (i int, begin, end int64, ok bool) {
	i = sort.Search(len(ps), func(i int) bool { return ps[i].Off > off })
	if i == 0 || i == len(ps) {
		return 0, 0, 0, false
	}
	return i - 1, ps[i-1].Off, ps[i].Off, true
}

// End is places with the end of a file of a kind, which has so many bytes and unpacks to off
// of them.
func (ps Places) End(kind source.Kind, size, off int64) Places {
	if n := len(ps); n == 0 || n == placeMost || ps[n-1].Off >= off {
		return ps
	}
	if kind == source.TarXz {
		size = xzAt(size, 0)
	}
	return append(ps, Place{At: size, Off: off})
}

// around is where to begin to unpack the bytes [off, end), and what the next place behind
// them is; false if there is none.
func (ps Places) around(off, end int64) (from Place, to Place, ok, more bool) {
	i := sort.Search(len(ps), func(i int) bool { return ps[i].Off > off }) - 1
	if i < 0 {
		return Place{}, Place{}, false, false
	}
	j := i + 1 + sort.Search(len(ps)-i-1, func(k int) bool { return ps[i+1+k].Off >= end })
	if j < len(ps) {
		return ps[i], ps[j], true, true
	}
	return ps[i], Place{}, true, false
}

// placeList is the places that are found while a file is unpacked.
type placeList struct {
	inside atomic.Int64 // bytes between two that are looked for in the middle of members, at the least

	mu      sync.Mutex
	Spacing        // guarded by mu
	wide    int64  // guarded by mu; Apart for those that have windows, if it is more
	all     Places // guarded by mu
	last    int64  // guarded by mu; Off of the one that was seen last
	gap     int64  // guarded by mu; the most bytes between two that are kept
	windows int64  // guarded by mu; bytes
	starts  starts // guarded by mu
	fresh   Places // guarded by mu; that were kept since Fresh, if Starts
}

func newPlaceList(s Spacing) *placeList {
	l := &placeList{Spacing: s}
	l.inside.Store(max(s.Inside, s.Apart))
	return l
}

func (l *placeList) see(s Start) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.Starts {
		l.starts.see(s, l.Apart)
	}
	p := s.Place
	if len(l.all) > 0 && p.Off <= l.last {
		return // nothing is between them, or it is the same once more
	}
	for l.last = p.Off; l.far(p) && len(l.all) == placeMost; {
		l.Apart *= 2
		l.thin()
	}
	for l.far(p) && l.windows > 0 && l.full(p) {
		l.wide = 2 * max(l.wide, l.Apart)
		l.thin()
	}
	if l.far(p) && !l.full(p) {
		l.keep(p)
		if l.Starts {
			l.fresh = append(l.fresh, p)
		}
	}
}

// far reports whether a place is far enough from the one before.
func (l *placeList) far(p Place) bool {
	if len(l.all) == 0 {
		return true
	}
	d := p.Off - l.all[len(l.all)-1].Off
	return d >= l.Apart && (p.Window == "" || d >= l.wide)
}

// full reports whether there is no room for the window of a place.
func (l *placeList) full(p Place) bool {
	return p.Window != "" && l.Windows > 0 && l.windows+int64(len(p.Window)) > l.Windows
}

func (l *placeList) keep(p Place) {
	if n := len(l.all); n > 0 {
		l.gap = max(l.gap, p.Off-l.all[n-1].Off)
	}
	l.windows += int64(len(p.Window))
	l.all = append(l.all, p)
}

// thin keeps those that are far enough apart.
func (l *placeList) thin() {
	all := l.all
	l.all, l.gap, l.windows = all[:0], 0, 0
	for _, p := range all {
		if l.far(p) {
			l.keep(p)
		}
	}
	clear(all[len(l.all):])
}

// Places is where the file can be unpacked from, as far as it has been.
func (u *Unpacked) Places() Places {
	if u.list == nil {
		return nil
	}
	u.list.mu.Lock()
	defer u.list.mu.Unlock()
	return slices.Clone(u.list.all)
}

// LookInside says how far apart places are that are looked for in the middle of members of gzip in
// what is unpacked next, in bytes.
func (u *Unpacked) LookInside(apart int64) {
	if u.list != nil {
		u.list.inside.Store(apart)
	}
}

// Way is the most that has to be unpacked to come to a byte before off, from the place that
// is the next one before it.
func (u *Unpacked) Way(off int64) int64 {
	if u.list == nil {
		return off
	}
	u.list.mu.Lock()
	defer u.list.mu.Unlock()
	if n := len(u.list.all); n > 0 {
		off -= u.list.all[n-1].Off
	}
	return max(u.list.gap, off)
}

// HasPlaces reports whether places are looked for in a kind of file.
func HasPlaces(k source.Kind) bool {
	return k == source.TarGzip || k == source.TarZstd || k == source.TarXz
}
