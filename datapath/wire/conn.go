package wire

import (
	"slices"
	"syscall"
)

// MaxDrained is the most connections that one DrainReq names.
const MaxDrained = 64

// DrainReq names the connections that a peer has lost, by the nonces of their Hellos.
type DrainReq struct{ Conns []Nonce }

// MaxDrainReq is the length of the longest DrainReq, in bytes.
const MaxDrainReq = 4 + MaxDrained*NonceSize

func (m *DrainReq) fields(c *codec) {
	list(c, &m.Conns, MaxDrained, NonceSize, func(c *codec, n *Nonce) { c.fixed(n[:]) })
}

// Drains reports whether connections for p are drained when they are lost. Those between homes are not: there no
// request may wait for earlier ones.
func (p Purpose) Drains() bool { return slices.Contains([]Purpose{PurposeMeta, PurposeBulk}, p) }

// CachedReplyReq asks for the reply to a request that was lost with its connection.
type CachedReplyReq struct {
	Conn Nonce // sent in its Hello
	Tag  uint32
}

func (m *CachedReplyReq) fields(c *codec) {
	c.fixed(m.Conn[:])
	u32(c, &m.Tag)
}

// Fate is the outcome of a request that was lost.
type Fate uint8

// The fates.
const (
	Unknown    Fate = 0 // the server does not know the connection: it may have restarted
	NotStarted Fate = 1 // the request has not run, nor will it
	Answered   Fate = 2 // the reply follows
)

// CachedReplyResp is the fate of a request, and the reply to it.
type CachedReplyResp struct {
	Fate   Fate
	Status syscall.Errno
	Body   []byte
}

func (m *CachedReplyResp) fields(c *codec) {
	u8(c, &m.Fate)
	c.fail(m.Fate <= Answered)
	if m.Fate == Answered {
		u16(c, &m.Status)
		c.bytes(&m.Body)
	}
}

// ReplyCached reports whether a server keeps its reply to o until the peer must have it: o is not Repeatable, but a
// user waits for it.
func (o Op) ReplyCached() bool {
	switch o {
	case OpCreate, OpCreateOpen, OpMkdir, OpLink, OpUnlink, OpRmdir, OpRename, OpSync, OpSetxattr, OpRemovexattr, OpStandInOnce:
		return true
	}
	return false
}
