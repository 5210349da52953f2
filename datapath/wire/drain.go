package wire

import (
	"fmt"
	"slices"
)

// MaxDrained is the most connections that one DrainReq names.
const MaxDrained = 64

// DrainReq names the connections that a peer has lost.
type DrainReq struct {
	Conns []Nonce // those of their Hellos
}

// MaxDrainReq is the length of the longest DrainReq, in bytes.
const MaxDrainReq = 1 + MaxDrained*NonceSize

// Append appends the encoding of m to b.
func (m DrainReq) Append(b []byte) []byte {
	b = append(b, byte(len(m.Conns)))
	for i := range m.Conns {
		b = append(b, m.Conns[i][:]...)
	}
	return b
}

// Parse decodes b into m.
func (m *DrainReq) Parse(b []byte) error {
	d := decoder{b: b}
	n := int(d.u8())
	if d.bad || n > MaxDrained || len(d.b) != n*NonceSize {
		return fmt.Errorf("drain request of %d bytes: %w", len(b), ErrMalformed)
	}
	m.Conns = make([]Nonce, n)
	for i := range m.Conns {
		copy(m.Conns[i][:], d.take(NonceSize))
	}
	return d.done("drain request")
}

// Drains reports whether connections for p are drained when they are lost.
// Among homes nothing may wait for what went before.
func (p Purpose) Drains() bool { return slices.Contains([]Purpose{PurposeMeta, PurposeBulk}, p) }
