package secure

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
)

// Sizes of a record, in bytes.
const (
	MaxRecord = 128 << 10 // payload
	headSize  = 4
	tagSize   = 16
)

// frames is a connection with a MAC per record.
type frames struct {
	socket
	in  reader
	out writer
}

var _ Buffers = (*frames)(nil)

func newFrames(conn net.Conn, s *Session) (*frames, error) {
	up, err := gmac(s, "frames to the server")
	if err != nil {
		return nil, err
	}
	down, err := gmac(s, "frames to the client")
	if err != nil {
		return nil, err
	}
	if !s.Client {
		up, down = down, up
	}
	return &frames{socket{conn}, reader{conn: conn, mac: mac{aead: down}}, writer{conn: conn, mac: mac{aead: up}}}, nil
}

func gmac(s *Session, use string) (cipher.AEAD, error) {
	key, err := s.key(use, 32)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// Read returns bytes of verified records.
func (c *frames) Read(p []byte) (int, error) { return c.in.read(p) }

// Write sends p in records.
func (c *frames) Write(p []byte) (int, error) {
	n, err := c.out.write(p)
	return int(n), err
}

// WriteBuffers sends b in records.
func (c *frames) WriteBuffers(b net.Buffers) (int64, error) { return c.out.write(b...) }

// mac seals or opens one record after another.
type mac struct {
	aead  cipher.AEAD
	nonce [12]byte // its last 8 bytes are the number of the next record
}

func (m *mac) next() []byte { return m.nonce[:] }

func (m *mac) advance() {
	binary.LittleEndian.PutUint64(m.nonce[4:], binary.LittleEndian.Uint64(m.nonce[4:])+1)
}

// seal appends the MAC of the next record to b.
func (m *mac) seal(b, payload []byte) []byte {
	b = m.aead.Seal(b, m.next(), nil, payload)
	m.advance()
	return b
}

// open checks the next record.
func (m *mac) open(payload, tag []byte) error {
	if _, err := m.aead.Open(nil, m.next(), tag, payload); err != nil {
		return fmt.Errorf("record %d does not verify: %w", binary.LittleEndian.Uint64(m.nonce[4:]), ErrTampered)
	}
	m.advance()
	return nil
}

// writer sends records.
type writer struct {
	conn net.Conn

	mu  sync.Mutex
	mac mac         // guarded by mu
	vec net.Buffers // guarded by mu
	own []byte      // guarded by mu: heads and MACs
	err error       // guarded by mu: part of a record may have been sent, so nothing can follow
}

// write sends all of bufs, if possible with one system call.
func (w *writer) write(bufs ...[]byte) (n int64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	records := 0
	for _, b := range bufs {
		n += int64(len(b))
		records += (len(b) + MaxRecord - 1) / MaxRecord
	}
	w.own = slices.Grow(w.own[:0], records*(headSize+tagSize))
	vec := w.vec[:0]
	for _, b := range bufs {
		for len(b) > 0 {
			p := b[:min(len(b), MaxRecord)]
			b = b[len(p):]
			at := len(w.own)
			w.own = binary.LittleEndian.AppendUint32(w.own, uint32(len(p)))
			w.own = w.mac.seal(w.own, p)
			vec = append(vec, w.own[at:at+headSize], p, w.own[at+headSize:])
		}
	}
	w.vec = vec // WriteTo consumes its argument
	_, err = vec.WriteTo(w.conn)
	clear(w.vec) // keep no memory of callers
	if err != nil {
		w.err = err
		return 0, err
	}
	return n, nil
}

// reader receives records. After a deadline it continues where it stopped.
type reader struct {
	conn net.Conn

	mu     sync.Mutex
	mac    mac        // guarded by mu
	need   int        // guarded by mu: payload of the record that is being read; 0 between records
	got    int        // guarded by mu: how much of it is in buf
	buf    []byte     // guarded by mu: a payload that did not fit in the caller's memory
	ready  []byte     // guarded by mu: the part of buf that is verified but not returned yet
	small  [1024]byte // guarded by mu: heads, MACs and bytes read with them
	lo, hi int        // guarded by mu: the unused part of small
	err    error      // guarded by mu: why nothing can follow
}

func (r *reader) read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.err != nil:
		return 0, r.err
	case len(p) == 0:
		return 0, nil
	case len(r.ready) == 0:
		direct, err := r.record(p)
		if errors.Is(err, ErrTampered) {
			r.err = err
		}
		if err != nil || direct > 0 {
			return direct, err
		}
	}
	n := copy(p, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// record reads and verifies the next record: into p if it fits there, and returns its size; else into ready.
func (r *reader) record(p []byte) (direct int, err error) {
	if r.need == 0 {
		if err := r.head(); err != nil {
			return 0, err
		}
	}
	to, ours := p, len(p) < r.need || r.got > 0
	if ours {
		if cap(r.buf) < r.need {
			r.buf = append(make([]byte, 0, r.need), r.buf[:r.got]...)
		}
		to = r.buf
	}
	to = to[:r.need]
	err = r.payload(to)
	if err == nil {
		err = r.fill(tagSize)
	}
	if err != nil {
		if !ours { // p goes back to the caller
			r.buf = append(r.buf[:0], to[:r.got]...)
		}
		return 0, cut(err)
	}
	tag := r.small[r.lo : r.lo+tagSize]
	r.lo += tagSize
	r.need, r.got = 0, 0
	if err := r.mac.open(to, tag); err != nil {
		clear(to)
		return 0, err
	}
	if ours {
		r.ready = to
		return 0, nil
	}
	return len(to), nil
}

// head reads the size of the next record.
func (r *reader) head() error {
	if err := r.fill(headSize); err != nil {
		if r.hi > r.lo {
			return cut(err)
		}
		return err
	}
	n := binary.LittleEndian.Uint32(r.small[r.lo:])
	if n == 0 || n > MaxRecord {
		return fmt.Errorf("record of %d bytes: %w", n, ErrTampered)
	}
	r.lo += headSize
	r.need = int(n)
	return nil
}

// payload reads the rest of a record's payload into to.
func (r *reader) payload(to []byte) error {
	n := copy(to[r.got:], r.small[r.lo:r.hi])
	r.lo += n
	r.got += n
	for r.got < len(to) {
		n, err := r.conn.Read(to[r.got:])
		r.got += n
		if err != nil && r.got < len(to) {
			return err
		}
	}
	return nil
}

// fill reads until small has n bytes.
func (r *reader) fill(n int) error {
	if r.hi-r.lo < n {
		r.hi = copy(r.small[:], r.small[r.lo:r.hi])
		r.lo = 0
	}
	for r.hi-r.lo < n {
		k, err := r.conn.Read(r.small[r.hi:])
		r.hi += k
		if err != nil && r.hi-r.lo < n {
			return err
		}
	}
	return nil
}

// cut returns the error of a connection that ends within a record.
func cut(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
