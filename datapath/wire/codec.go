package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Message is a request or a reply. Its fields method names each field once, in
// the order of the package comment; the codec encodes or decodes it.
type Message interface{ fields(c *codec) }

// Append appends the encoding of m, which is not JSON, to b.
func Append(b []byte, m Message) []byte {
	b, err := Encode(b, m)
	if err != nil {
		panic(err) // only JSON can fail
	}
	return b
}

// Encode appends the encoding of m to b.
func Encode(b []byte, m Message) ([]byte, error) {
	c := codecs.Get().(*codec)
	c.b, c.encoding = b, true
	m.fields(c)
	b, err := c.b, c.err
	c.release()
	return b, err
}

// Parse decodes all of b into m and keeps no reference to b. It fails with ErrMalformed, after which the fields of m
// are undefined.
func Parse(b []byte, m Message) error {
	c := codecs.Get().(*codec)
	c.b = b
	m.fields(c)
	err := c.verdict(m)
	c.release()
	return err
}

// Sizes of the encodings without their strings, in bytes.
const (
	layoutSize = 1 + 1 + 2 + 4 + 2 + 8
	attrSize   = 8 + 5*4 + 4*8 + layoutSize
	termsSize  = 4 + 4
	entrySize  = 8 + 4 + 1 + 4 // without an Attr, with an empty name
	lockSize   = 1 + 1 + 8 + 8 + 8 + 4
	editSize   = 1 + 8 + 4 + 8 + 4 + 8 + 4 + 1
	openedSize = 8 + 8 + 1 + 3*8 + 4 + 4 + 1
)

// codec encodes fields to the end of b, or decodes them off its front. After the
// first field that is missing it leaves all others as they are.
type codec struct {
	b        []byte
	encoding bool
	bad      bool  // b is too short, or a value was out of range
	err      error // the first error with its own cause
	listed   int   // elements of the list that is being decoded
	attrs    []metadata.Attr
}

var codecs = sync.Pool{New: func() any { return new(codec) }}

func (c *codec) release() {
	*c = codec{}
	codecs.Put(c)
}

// verdict checks that a whole message was decoded: nothing missing, nothing left.
func (c *codec) verdict(m Message) error {
	switch {
	case c.err != nil:
		return fmt.Errorf("%T: %w", m, c.err)
	case c.bad:
		return fmt.Errorf("%T: cut short or out of range: %w", m, ErrMalformed)
	case len(c.b) > 0:
		return fmt.Errorf("%T: %d bytes left over: %w", m, len(c.b), ErrMalformed)
	}
	return nil
}

// fail marks the message as malformed unless ok.
func (c *codec) fail(ok bool) { c.bad = c.bad || !ok }

// take removes the next n bytes from b; nil if there are fewer.
func (c *codec) take(n int) []byte {
	if c.bad || n > len(c.b) {
		c.bad = true
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func u8[T ~uint8](c *codec, v *T) {
	if c.encoding {
		c.b = append(c.b, uint8(*v))
	} else if p := c.take(1); p != nil {
		*v = T(p[0])
	}
}

func u16[T ~uint16 | ~uintptr](c *codec, v *T) {
	if c.encoding {
		c.b = binary.LittleEndian.AppendUint16(c.b, uint16(*v))
	} else if p := c.take(2); p != nil {
		*v = T(binary.LittleEndian.Uint16(p))
	}
}

func u32[T ~uint32](c *codec, v *T) {
	if c.encoding {
		c.b = binary.LittleEndian.AppendUint32(c.b, uint32(*v))
	} else if p := c.take(4); p != nil {
		*v = T(binary.LittleEndian.Uint32(p))
	}
}

func u64[T ~uint64 | ~int64](c *codec, v *T) {
	if c.encoding {
		c.b = binary.LittleEndian.AppendUint64(c.b, uint64(*v))
	} else if p := c.take(8); p != nil {
		*v = T(binary.LittleEndian.Uint64(p))
	}
}

func (c *codec) bool(v *bool) {
	var n uint8
	if *v {
		n = 1
	}
	u8(c, &n)
	c.fail(n <= 1)
	if !c.encoding {
		*v = n == 1
	}
}

// fixed codes an array of bytes.
func (c *codec) fixed(v []byte) {
	if c.encoding {
		c.b = append(c.b, v...)
		return
	}
	copy(v, c.take(len(v)))
}

// literal codes bytes that are the same in every message.
func (c *codec) literal(s string) {
	if c.encoding {
		c.b = append(c.b, s...)
	} else if p := c.take(len(s)); string(p) != s {
		c.bad = true
	}
}

func (c *codec) string(v *string) {
	n := uint32(len(*v))
	u32(c, &n)
	switch {
	case c.encoding:
		c.b = append(c.b, *v...)
	case uint64(n) > uint64(len(c.b)):
		c.bad = true
	default:
		*v = string(c.take(int(n)))
	}
}

// bytes codes a length and that many bytes; no bytes decode as nil.
func (c *codec) bytes(v *[]byte) {
	n := uint32(len(*v))
	u32(c, &n)
	switch {
	case c.encoding:
		c.b = append(c.b, *v...)
	case uint64(n) > uint64(len(c.b)):
		c.bad = true
	default:
		*v = append([]byte(nil), c.take(int(n))...)
	}
}

// optional codes a bool and, if it is true, the value.
func optional[T any](c *codec, v **T, value func(*codec, *T)) {
	has := *v != nil
	c.bool(&has)
	if !c.encoding {
		if *v = nil; has && !c.bad {
			*v = new(T)
		}
	}
	if *v != nil {
		value(c, *v)
	}
}

// unlimited is the limit of a list that may fill its frame.
const unlimited = 1<<32 - 1

// list codes a count and at most limit elements of at least size bytes. It rejects a count that promises more than b
// holds.
func list[T any](c *codec, v *[]T, limit uint32, size int, element func(*codec, *T)) {
	n := uint32(len(*v))
	u32(c, &n)
	if !c.encoding {
		*v = nil
		c.fail(n <= limit && uint64(n)*uint64(size) <= uint64(len(c.b)))
		if c.bad || n == 0 {
			return
		}
		*v, c.listed = make([]T, n), int(n)
	}
	for i := range *v {
		if c.bad {
			return
		}
		element(c, &(*v)[i])
	}
}

func (c *codec) layout(l *metadata.Layout) {
	u8(c, &l.Kind)
	u8(c, &l.Copies)
	u16(c, &l.Node)
	u32(c, &l.ChunkSize)
	u16(c, &l.Width)
	u64(c, &l.Epoch)
}

func (c *codec) attr(a *metadata.Attr) {
	u64(c, &a.Ino)
	u32(c, &a.Mode)
	u32(c, &a.Nlink)
	u32(c, &a.UID)
	u32(c, &a.GID)
	u32(c, &a.Rdev)
	u64(c, &a.Size)
	u64(c, &a.Atime)
	u64(c, &a.Mtime)
	u64(c, &a.Ctime)
	c.layout(&a.Layout)
}

// newAttr returns room for an Attr. The Attrs of a list share one allocation.
func (c *codec) newAttr() *metadata.Attr {
	if len(c.attrs) == 0 {
		c.attrs = make([]metadata.Attr, 1+min(c.listed, len(c.b)/(entrySize+attrSize)))
	}
	a := &c.attrs[0]
	c.attrs = c.attrs[1:]
	return a
}

func (c *codec) entry(e *metadata.Entry) {
	u64(c, &e.Ino)
	u32(c, &e.Mode)
	has := e.Attr != nil
	c.bool(&has)
	if !c.encoding {
		if e.Attr = nil; has && !c.bad {
			e.Attr = c.newAttr()
		}
	}
	if e.Attr != nil {
		c.attr(e.Attr)
	}
	c.string(&e.Name)
}

func (c *codec) newInode(n *metadata.New) {
	u32(c, &n.Mode)
	u32(c, &n.UID)
	u32(c, &n.GID)
	u32(c, &n.Rdev)
	c.string(&n.Target)
	c.layout(&n.Layout)
}

func (c *codec) change(a *metadata.Change) {
	u32(c, &a.Set)
	u32(c, &a.Mode)
	u32(c, &a.UID)
	u32(c, &a.GID)
	u64(c, &a.Size)
	u64(c, &a.Atime)
	u64(c, &a.Mtime)
	c.layout(&a.Layout)
	u64(c, &a.Freeze)
}

// JSON is the message of a control op: V, which is a pointer when decoding.
type JSON struct{ V any }

func (m *JSON) fields(c *codec) {
	if c.encoding {
		c.err = json.NewEncoder(c).Encode(m.V)
		return
	}
	if err := json.Unmarshal(c.b, m.V); err != nil {
		c.err = fmt.Errorf("%v: %w", err, syscall.EPROTO)
	}
	c.b = nil
}

// Write lets a json.Encoder append to b.
func (c *codec) Write(p []byte) (int, error) {
	c.b = append(c.b, p...)
	return len(p), nil
}

// Raw is a message of any bytes.
type Raw []byte

func (m *Raw) fields(c *codec) {
	if c.encoding {
		c.b = append(c.b, *m...)
		return
	}
	*m = append([]byte(nil), c.b...)
	c.b = nil
}
