package wire

import (
	"fmt"
	"syscall"
)

// CachedReplyReq asks what became of a request that was lost with its connection.
type CachedReplyReq struct {
	Conn Nonce // that of its Hello
	Tag  uint32
}

// Append appends the encoding of m to b.
func (m CachedReplyReq) Append(b []byte) []byte {
	return appendU32(append(b, m.Conn[:]...), m.Tag)
}

// Parse decodes b into m.
func (m *CachedReplyReq) Parse(b []byte) error {
	d := decoder{b: b}
	copy(m.Conn[:], d.take(NonceSize))
	m.Tag = d.u32()
	return d.done("recollect request")
}

// Fate is what became of a request.
type Fate uint8

// The fates.
const (
	Unknown    Fate = 0 // the server knows nothing of the connection: it may be another process
	NotStarted Fate = 1 // it has not run, nor will it
	Answered   Fate = 2 // the reply follows
)

// CachedReplyResp is what became of a request, and the reply to it.
type CachedReplyResp struct {
	Fate   Fate
	Status syscall.Errno
	Body   []byte
}

// Append appends the encoding of m to b.
func (m CachedReplyResp) Append(b []byte) []byte {
	b = append(b, byte(m.Fate))
	if m.Fate != Answered {
		return b
	}
	return appendBytes(appendU16(b, uint16(m.Status)), m.Body)
}

// Parse decodes b into m.
func (m *CachedReplyResp) Parse(b []byte) error {
	d := decoder{b: b}
	*m = CachedReplyResp{Fate: Fate(d.u8())}
	if m.Fate > Answered {
		return fmt.Errorf("fate %d of a request: %w", m.Fate, ErrMalformed)
	}
	if m.Fate == Answered {
		m.Status = syscall.Errno(d.u16())
		m.Body = d.bytes()
	}
	return d.done("recollect reply")
}

// ReplyCached reports whether a server remembers its reply to o until the peer
// must have it: o is not Repeatable, but a user waits for it.
func (o Op) ReplyCached() bool {
	switch o {
	case OpCreate, OpCreateOpen, OpMkdir, OpLink, OpUnlink, OpRmdir, OpRename, OpReap, OpSync, OpSetxattr, OpRemovexattr:
		return true
	}
	return false
}
