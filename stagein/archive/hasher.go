package archive

import (
	"github.com/zeebo/xxh3"
)

// Hasher computes the xxh3-128 of a file as its bytes arrive.
type Hasher struct {
	Size  int64
	whole [16]byte
	h     *xxh3.Hasher128
}

func (m *Hasher) Write(b []byte) {
	if m.h == nil && int64(len(b)) == m.Size {
		m.whole = xxh3.Hash128(b).Bytes()
		return
	}
	if m.h == nil {
		m.h = xxh3.New128()
	}
	_, _ = m.h.Write(b) // cannot fail
}

func (m *Hasher) Sum128() [16]byte {
	switch {
	case m.Size == 0:
		return xxh3.Hash128(nil).Bytes()
	case m.h != nil:
		return m.h.Sum128().Bytes()
	}
	return m.whole
}
