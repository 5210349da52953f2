package wire

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Purpose is what a connection is for.
type Purpose uint8

// The purposes.
const (
	PurposeMeta   Purpose = 1
	PurposeBulk   Purpose = 2
	PurposeStream Purpose = 3
	PurposePeer   Purpose = 4
)

// Sizes of the handshake's messages, in bytes. ChallengeHead is the part of a
// Challenge that comes alone from a peer of another version.
const (
	NonceSize     = 32
	MACSize       = 32
	HelloSize     = 12 + NonceSize
	ChallengeHead = 8
	ChallengeSize = ChallengeHead + NonceSize + MACSize
	ProofSize     = 4 + MACSize
	VerdictSize   = 4 + MACSize
)

// The labels that tell the MACs of the handshake apart.
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

// ErrVersion is the cause where the peer speaks another version.
var ErrVersion = fmt.Errorf("peer speaks another version of the protocol: %w", syscall.EPROTONOSUPPORT)

// Nonce is a number used once.
type Nonce [NonceSize]byte

// MAC is an HMAC-SHA-256.
type MAC [MACSize]byte

// Hello opens a handshake.
type Hello struct {
	Purpose Purpose
	From    metadata.NodeID
	To      metadata.NodeID
	Nonce   Nonce
}

// Append appends the encoding of m to b.
func (m Hello) Append(b []byte) []byte {
	b = append(b, magicHello...)
	b = appendU16(b, Version)
	b = append(b, byte(m.Purpose), 0)
	b = appendU16(b, uint16(m.From))
	b = appendU16(b, uint16(m.To))
	return append(b, m.Nonce[:]...)
}

// Parse decodes b into m: ErrVersion or ErrMalformed.
func (m *Hello) Parse(b []byte) error {
	if len(b) != HelloSize || string(b[:4]) != magicHello {
		return fmt.Errorf("hello: %w", ErrMalformed)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != Version {
		return fmt.Errorf("hello of version %d, this is %d: %w", v, Version, ErrVersion)
	}
	d := decoder{b: b[6:]}
	*m = Hello{Purpose: Purpose(d.u8())}
	d.bad = d.u8() != 0 || m.Purpose < PurposeMeta || m.Purpose > PurposePeer
	m.From, m.To = metadata.NodeID(d.u16()), metadata.NodeID(d.u16())
	copy(m.Nonce[:], d.take(NonceSize))
	return d.done("hello")
}

// Challenge is the answer to a Hello.
type Challenge struct {
	Nonce Nonce
	MAC   MAC
}

// Append appends the encoding of m to b.
func (m Challenge) Append(b []byte) []byte {
	b = append(b, magicChallenge...)
	b = appendU16(b, Version)
	b = appendU16(b, 0)
	b = append(b, m.Nonce[:]...)
	return append(b, m.MAC[:]...)
}

// CheckChallengeHead looks at the first ChallengeHead bytes of a Challenge:
// ErrVersion or ErrMalformed.
func CheckChallengeHead(b []byte) error {
	if len(b) != ChallengeHead || string(b[:4]) != magicChallenge {
		return fmt.Errorf("challenge: %w", ErrMalformed)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != Version {
		return fmt.Errorf("challenge of version %d, this is %d: %w", v, Version, ErrVersion)
	}
	if b[6] != 0 || b[7] != 0 {
		return fmt.Errorf("challenge: %w", ErrMalformed)
	}
	return nil
}

// Parse decodes b into m: ErrVersion or ErrMalformed.
func (m *Challenge) Parse(b []byte) error {
	if len(b) != ChallengeSize {
		return fmt.Errorf("challenge of %d bytes: %w", len(b), ErrMalformed)
	}
	if err := CheckChallengeHead(b[:ChallengeHead]); err != nil {
		return err
	}
	d := decoder{b: b[ChallengeHead:]}
	copy(m.Nonce[:], d.take(NonceSize))
	copy(m.MAC[:], d.take(MACSize))
	return d.done("challenge")
}

// Proof is the client's proof that it has the key.
type Proof struct {
	MAC MAC
}

// Append appends the encoding of m to b.
func (m Proof) Append(b []byte) []byte { return append(append(b, magicProof...), m.MAC[:]...) }

// Parse decodes b into m.
func (m *Proof) Parse(b []byte) error { return parseMAC(&m.MAC, b, magicProof, "proof") }

// Verdict is the server's word that requests may follow.
type Verdict struct {
	MAC MAC
}

// Append appends the encoding of m to b.
func (m Verdict) Append(b []byte) []byte { return append(append(b, magicVerdict...), m.MAC[:]...) }

// Parse decodes b into m.
func (m *Verdict) Parse(b []byte) error { return parseMAC(&m.MAC, b, magicVerdict, "verdict") }

func parseMAC(mac *MAC, b []byte, magic, what string) error {
	if len(b) != 4+MACSize || string(b[:4]) != magic {
		return fmt.Errorf("%s: %w", what, ErrMalformed)
	}
	copy(mac[:], b[4:])
	return nil
}
