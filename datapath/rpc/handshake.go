package rpc

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/bivouacfs/bivouac/datapath/secure"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// identity is one side of a handshake: the key, the job name, its own node id, and the protection of connections. A
// function hides the key, so that no format prints it.
type identity struct {
	key     func() Key
	job     string
	self    metadata.NodeID
	protect secure.Mode
}

func newIdentity(key Key, job string, self metadata.NodeID, protect secure.Mode) identity {
	return identity{key: func() Key { return key }, job: job, self: self, protect: protect}
}

// mac returns the MAC that package wire defines.
func (id *identity) mac(label string, hello []byte, server *wire.Nonce) (m wire.MAC) {
	key := id.key()
	h := hmac.New(sha256.New, key[:])
	h.Write([]byte(label))
	h.Write(hello)
	h.Write(server[:])
	h.Write([]byte(id.job))
	h.Sum(m[:0])
	return m
}

func sameMAC(a, b wire.MAC) bool { return hmac.Equal(a[:], b[:]) }

func newNonce() (n wire.Nonce) {
	_, _ = rand.Read(n[:]) // never fails
	return n
}

// secured returns conn with the protection of the job.
func (id *identity) secured(conn net.Conn, hello []byte, server *wire.Nonce, dialled bool) (net.Conn, error) {
	key := id.key()
	transcript := append(append(append([]byte(nil), hello...), server[:]...), id.job...)
	return secure.Protect(conn, id.protect, secure.Session{Key: key[:], Transcript: transcript, Client: dialled})
}

// checkProtection refuses a peer with another setting.
func (id *identity) checkProtection(peer uint8) error {
	if p := secure.Mode(peer); p != id.protect {
		return fmt.Errorf("the peer has %v, this node %v: %w", p, id.protect, errProtection)
	}
	return nil
}

// dialHandshake is the dialing side of a handshake, with an unused nonce. It returns conn, protected.
// The caller sets the deadline.
func (id *identity) dialHandshake(conn net.Conn, to metadata.NodeID, purpose wire.Purpose, nonce wire.Nonce) (net.Conn, error) {
	hello := wire.Append(nil, &wire.Hello{Purpose: purpose, Protection: uint8(id.protect), From: id.self, To: to, Nonce: nonce})
	server, err := id.prove(conn, hello)
	if err != nil {
		return nil, err
	}
	return id.secured(conn, hello, server, true)
}

// prove shakes hands as the client that sends hello, and returns the nonce of the server.
func (id *identity) prove(conn net.Conn, hello []byte) (*wire.Nonce, error) {
	if _, err := conn.Write(hello); err != nil {
		return nil, err
	}
	var b [wire.ChallengeSize]byte
	if _, err := io.ReadFull(conn, b[:wire.ChallengeHead]); err != nil {
		return nil, hangup(err)
	}
	protection, err := wire.CheckChallengeHead(b[:wire.ChallengeHead])
	if err == nil {
		err = id.checkProtection(protection)
	}
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, b[wire.ChallengeHead:]); err != nil {
		return nil, hangup(err)
	}
	var ch wire.Challenge
	if err := wire.Parse(b[:], &ch); err != nil {
		return nil, err
	}
	if !sameMAC(ch.MAC, id.mac(wire.LabelServer, hello, &ch.Nonce)) {
		return nil, errKey
	}
	proof := wire.Proof{MAC: id.mac(wire.LabelClient, hello, &ch.Nonce)}
	if _, err := conn.Write(wire.Append(nil, &proof)); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(conn, b[:wire.VerdictSize]); err != nil {
		return nil, hangup(err)
	}
	var v wire.Verdict
	if err := wire.Parse(b[:wire.VerdictSize], &v); err != nil {
		return nil, err
	}
	if !sameMAC(v.MAC, id.mac(wire.LabelAccept, hello, &ch.Nonce)) {
		return nil, errKey
	}
	return &ch.Nonce, nil
}

// acceptHandshake is the accepting side of a handshake. It returns conn, protected. The caller sets the
// deadline.
func (id *identity) acceptHandshake(conn net.Conn, seen *nonceRing) (net.Conn, wire.Hello, error) {
	var b [wire.HelloSize]byte
	hello, server, err := id.challenge(conn, b[:], seen)
	if err != nil {
		return nil, hello, err
	}
	v := wire.Verdict{MAC: id.mac(wire.LabelAccept, b[:], server)}
	if _, err := conn.Write(wire.Append(nil, &v)); err != nil {
		return nil, hello, err
	}
	conn, err = id.secured(conn, b[:], server, false)
	return conn, hello, err
}

// challenge reads a client's Hello into b, sends the Challenge, checks the Proof, and returns the server's nonce.
func (id *identity) challenge(conn net.Conn, b []byte, seen *nonceRing) (hello wire.Hello, _ *wire.Nonce, err error) {
	if _, err := io.ReadFull(conn, b); err != nil {
		return hello, nil, hangup(err)
	}
	ch := wire.Challenge{Protection: uint8(id.protect), Nonce: newNonce()}
	if err = wire.Parse(b, &hello); err == nil {
		err = id.checkProtection(hello.Protection)
	}
	if errors.Is(err, wire.ErrVersion) || errors.Is(err, errProtection) {
		_, _ = conn.Write(wire.Append(nil, &ch)[:wire.ChallengeHead]) // so that the client can report it
	}
	if err != nil {
		return hello, nil, err
	}
	if hello.To != id.self {
		return hello, nil, fmt.Errorf("node %d wants node %d: %w", hello.From, hello.To, errOtherNode)
	}
	if seen.has(hello.Nonce) {
		return hello, nil, errReplay
	}
	ch.MAC = id.mac(wire.LabelServer, b, &ch.Nonce)
	if _, err := conn.Write(wire.Append(nil, &ch)); err != nil {
		return hello, nil, err
	}
	if err := id.checkProof(conn, b, &ch.Nonce); err != nil {
		return hello, nil, err
	}
	seen.add(hello.Nonce)
	return hello, &ch.Nonce, nil
}

// checkProof reads the client's proof. A client that hangs up after our Challenge has another key.
func (id *identity) checkProof(conn net.Conn, hello []byte, server *wire.Nonce) error {
	var b [wire.ProofSize]byte
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		if err = hangup(err); errors.Is(err, errHangup) {
			return errKey
		}
		return err
	}
	var p wire.Proof
	if err := wire.Parse(b[:], &p); err != nil {
		return err
	}
	if !sameMAC(p.MAC, id.mac(wire.LabelClient, hello, server)) {
		return errKey
	}
	return nil
}

func hangup(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errHangup
	}
	return err
}

// nonceRing holds the client nonces of the latest handshakes. A replay fails anyway, because the server's nonce is
// always fresh; the ring recognises it early, and it gets no reply.
type nonceRing struct {
	mu   sync.Mutex
	set  map[wire.Nonce]struct{} // guarded by mu
	ring []wire.Nonce            // guarded by mu
	next int                     // guarded by mu
}

// remembered is the size of a nonceRing: 32 bytes each.
const remembered = 8192

func newNonceRing(n int) *nonceRing {
	return &nonceRing{set: make(map[wire.Nonce]struct{}), ring: make([]wire.Nonce, 0, n)}
}

func (r *nonceRing) has(n wire.Nonce) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.set[n]
	return ok
}

func (r *nonceRing) add(n wire.Nonce) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ring) < cap(r.ring) {
		r.ring = append(r.ring, n)
	} else {
		delete(r.set, r.ring[r.next])
		r.ring[r.next] = n
		r.next = (r.next + 1) % len(r.ring)
	}
	r.set[n] = struct{}{}
}
