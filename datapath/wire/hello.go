package wire

import (
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Purpose is the purpose of a connection.
type Purpose uint8

// The purposes.
const (
	PurposeMeta   Purpose = 1
	PurposeBulk   Purpose = 2
	PurposeStream Purpose = 3
	PurposePeer   Purpose = 4
	PurposeMirror Purpose = 5
)

// Sizes of the handshake's messages, in bytes. ChallengeHead is the part of a Challenge that a peer of another version
// sends alone.
const (
	NonceSize     = 32
	MACSize       = 32
	HelloSize     = 12 + NonceSize
	ChallengeHead = 8
	ChallengeSize = ChallengeHead + NonceSize + MACSize
	ProofSize     = 4 + MACSize
	VerdictSize   = 4 + MACSize
)

// The labels that distinguish the MACs of the handshake.
const (
	LabelServer = "bivouac-server-1"
	LabelClient = "bivouac-client-1"
	LabelAccept = "bivouac-accept-1"
)

const (
	magicHello     = "BVhi"
	magicChallenge = "BVch"
	magicProof     = "BVpr"
	magicVerdict   = "BVok"
)

// ErrVersion is the cause if the peer speaks another version.
var ErrVersion = fmt.Errorf("peer speaks another version of the protocol: %w", syscall.EPROTONOSUPPORT)

// Nonce is a number used once.
type Nonce [NonceSize]byte

// MAC is an HMAC-SHA-256.
type MAC [MACSize]byte

// Hello opens a handshake.
type Hello struct {
	Purpose    Purpose
	Protection uint8 // of the connection after the handshake: a mode of package secure
	From       metadata.NodeID
	To         metadata.NodeID
	Nonce      Nonce
}

func (m *Hello) fields(c *codec) {
	c.literal(magicHello)
	c.version()
	u8(c, &m.Purpose)
	c.fail(c.encoding || m.Purpose >= PurposeMeta && m.Purpose <= PurposeMirror)
	u8(c, &m.Protection)
	u16(c, &m.From)
	u16(c, &m.To)
	c.fixed(m.Nonce[:])
}

// version codes the version of the sender. A version other than ours is ErrVersion.
func (c *codec) version() {
	v := uint16(Version)
	u16(c, &v)
	if !c.bad && c.err == nil && v != Version {
		c.err = fmt.Errorf("version %d, this is %d: %w", v, Version, ErrVersion)
	}
}

// Challenge is the answer to a Hello.
type Challenge struct {
	Protection uint8
	Nonce      Nonce
	MAC        MAC
}

func (m *Challenge) fields(c *codec) {
	h := challengeHead{m.Protection}
	h.fields(c)
	m.Protection = h.protection
	c.fixed(m.Nonce[:])
	c.fixed(m.MAC[:])
}

type challengeHead struct{ protection uint8 }

func (m *challengeHead) fields(c *codec) {
	c.literal(magicChallenge)
	c.version()
	u8(c, &m.protection)
	c.literal("\x00")
}

// CheckChallengeHead checks the first ChallengeHead bytes of a Challenge, and returns the protection in it. The error
// is ErrVersion or ErrMalformed.
func CheckChallengeHead(b []byte) (protection uint8, err error) {
	var h challengeHead
	err = Parse(b, &h)
	return h.protection, err
}

// Proof is the client's proof that it has the key.
type Proof struct{ MAC MAC }

func (m *Proof) fields(c *codec) {
	c.literal(magicProof)
	c.fixed(m.MAC[:])
}

// Verdict is the server's confirmation that requests may follow.
type Verdict struct{ MAC MAC }

func (m *Verdict) fields(c *codec) {
	c.literal(magicVerdict)
	c.fixed(m.MAC[:])
}
