package unpack

import (
	"bufio"
	"encoding/binary"
	"hash/crc32"
	"io"
	"sync/atomic"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// inner finds places inside members of gzip while they are unpacked: there the deflated data
// falls into blocks, each of which can be unpacked from its first bit on with the 32 KiB before it.
type inner struct {
	apart *atomic.Int64          // bytes between two places, at the least
	at    func() int64           // where in the file what is read next lies
	since func(off int64) []byte // what was read of the file from off on; nil is that it is there no more

	out   int64    // bytes that were given out
	last  int64    // of them, of the place that was found last
	fresh []window // whose use is not known yet
	found []Start  // whose Off counts from the first byte that was given out
}

// window is a place with what it needs of the bytes before it.
type window struct {
	Start
	b      []byte
	summed bool // Sum and Size are known
}

// members is a place at which a member begins.
func (x *inner) members() {
	if x.due(x.out) {
		x.found = append(x.found, Start{Place: Place{At: x.at(), Off: x.out}})
	}
}

// due reports whether a place at off is wanted. The first byte of all is one already.
func (x *inner) due(off int64) bool {
	if off-x.last < x.apart.Load() || off == 0 {
		return false
	}
	x.last = off
	return true
}

// member makes the reader of the member whose header was read from in.
//
// The library counts bytes twice that it has read when a stored block begins. By how much it is ahead
// shows at the end of that block, where it has used all that was read.
func (x *inner) member(in byteSource) *member { return x.reader(in) }

// goOn is member for one that begins in its middle.
func (x *inner) goOn(in byteSource, s Start) (*member, error) {
	window, err := s.window()
	if err != nil {
		return nil, err
	}
	m := x.reader(in, flate.WithResumeFrom(flate.InflateCheckpoint{BitOffset: s.Bit, Window: window}))
	m.sum, m.size = s.Sum, s.Size
	return m, nil
}

func (x *inner) reader(in byteSource, from ...flate.ReaderOpt) *member {
	base, out, ahead := x.at(), x.out, int64(0)
	return &member{in: in, x: x, data: flate.NewReaderOpts(in, append(from, flate.WithEobCallback(func(c flate.InflateCheckpoint) {
		bit := c.CompressedOffset*8 + int64(c.BitOffset)
		ahead = max(ahead, bit-8*(x.at()-base))
		bit -= ahead
		if off := out + c.UncompressedOffset; !c.Final && x.due(off) {
			p := Place{At: base + bit/8, Bit: uint8(bit % 8), Off: off}
			x.fresh = append(x.fresh, window{Start: Start{Place: p}, b: append([]byte(nil), c.Window...)})
		}
	}))...)}
}

// gave takes note of what was given out: of what is far enough behind, all use is known.
func (x *inner) gave(n int, end bool) {
	for x.out += int64(n); len(x.fresh) > 0; x.fresh = x.fresh[1:] {
		w := &x.fresh[0]
		if !end && x.out < w.Off+windowMost {
			return
		}
		w.Window = packWindow(sift(w.b, x.since(w.At), w.Bit))
		x.found = append(x.found, w.Start)
	}
}

// take is the places that were found since it was called last.
func (x *inner) take() []Start {
	all := x.found
	x.found = nil
	return all
}

// finder is a reader that may find places in what it gives out.
type finder interface{ take() []Start }

// member unpacks a member of gzip whose header was read, and compares its checksum and its size.
type member struct {
	in        byteSource
	x         *inner // nil is that it begins in its middle: then they are not known
	data      io.Reader
	sum, size uint32
}

// gunzipAt unpacks from a place inside a member on.
func gunzipAt(in *bufio.Reader, p Place) (*gunzip, error) {
	window, err := p.window()
	if err != nil {
		return nil, err
	}
	from := flate.WithResumeFrom(flate.InflateCheckpoint{BitOffset: p.Bit, Window: window})
	return &gunzip{in: in, r: &member{in: in, data: flate.NewReaderOpts(in, from)}, inOne: true}, nil
}

// Read implements io.Reader.
func (m *member) Read(p []byte) (int, error) {
	n, err := m.data.Read(p)
	if m.x != nil {
		m.add(p[:n])
		m.x.gave(n, err == io.EOF)
	}
	if err == io.EOF {
		err = m.end()
	}
	return n, err
}

// add sums up what is given out, and says at places what that is so far.
func (m *member) add(b []byte) {
	at := m.x.out
	for i := range m.x.fresh {
		w := &m.x.fresh[i]
		if w.summed {
			continue
		}
		n := w.Off - at
		if n > int64(len(b)) {
			break
		}
		m.update(b[:n])
		at, b = at+n, b[n:]
		w.Sum, w.Size, w.summed = m.sum, m.size, true
	}
	m.update(b)
}

func (m *member) update(b []byte) {
	m.sum = crc32.Update(m.sum, crc32.IEEETable, b)
	m.size += uint32(len(b))
}

// end reads what follows the data; io.EOF is that it is right.
func (m *member) end() error {
	var tail [gzipTail]byte
	_, err := io.ReadFull(m.in, tail[:])
	switch {
	case err == io.EOF:
		return io.ErrUnexpectedEOF
	case err != nil:
		return err
	case m.x != nil && (binary.LittleEndian.Uint32(tail[:]) != m.sum || memberSize(tail[:]) != m.size):
		return gzip.ErrChecksum
	}
	return io.EOF
}

// near reports whether what is read now may be wanted behind a place.
func (x *inner) near() bool { return len(x.fresh) > 0 || x.out+tapeBefore-x.last >= x.apart.Load() }

// tape remembers what was read last, where it may be wanted.
type tape struct {
	in   io.Reader
	near func() bool
	off  int64 // of b, in the file
	b    []byte
}

const (
	tapeMost   = 4 * windowMost // bytes that are remembered: what a window is used by is seldom as much
	tapeBefore = 1 << 20        // how long before a place, of what comes out: what is read at a time is seldom more
	tapeLeast  = 8              // bytes that are remembered anyway: those of which only some bits were used
)

// Read implements io.Reader.
func (t *tape) Read(p []byte) (int, error) {
	n, err := t.in.Read(p)
	if !t.near() && n >= tapeLeast {
		t.off += int64(len(t.b) + n - tapeLeast)
		t.b = append(t.b[:0], p[n-tapeLeast:n]...)
		return n, err
	}
	if old := len(t.b) - tapeMost; old > tapeMost {
		t.off += int64(old)
		t.b = t.b[:copy(t.b, t.b[old:])]
	}
	t.b = append(t.b, p[:n]...)
	return n, err
}

// since is what was read from off on; nil is that it is there no more.
func (t *tape) since(off int64) []byte {
	if off -= t.off; off < 0 || off > int64(len(t.b)) {
		return nil
	}
	return t.b[off:]
}
