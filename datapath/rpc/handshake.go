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

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// identity is one side of a handshake: the key, the name of the job, its own id. The key is behind
// a function so that no format shows it.
type identity struct {
	key  func() Key
	job  string
	self metadata.NodeID
}

func newIdentity(key Key, job string, self metadata.NodeID) identity {
	return identity{key: func() Key { return key }, job: job, self: self}
}

// mac is the proof defined by package wire.
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

// dialHandshake is the dialing side of a handshake, with an unused nonce. The caller sets the
// deadline.
func (id *identity) dialHandshake(conn net.Conn, to metadata.NodeID, purpose wire.Purpose, nonce wire.Nonce) error {
	hello := wire.Append(nil, &wire.Hello{Purpose: purpose, From: id.self, To: to, Nonce: nonce})
	if _, err := conn.Write(hello); err != nil {
		return err
	}
	var b [wire.ChallengeSize]byte
	if _, err := io.ReadFull(conn, b[:wire.ChallengeHead]); err != nil {
		return hangup(err)
	}
	if err := wire.CheckChallengeHead(b[:wire.ChallengeHead]); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, b[wire.ChallengeHead:]); err != nil {
		return hangup(err)
	}
	var ch wire.Challenge
	if err := wire.Parse(b[:], &ch); err != nil {
		return err
	}
	if !sameMAC(ch.MAC, id.mac(wire.LabelServer, hello, &ch.Nonce)) {
		return errKey
	}
	proof := wire.Proof{MAC: id.mac(wire.LabelClient, hello, &ch.Nonce)}
	if _, err := conn.Write(wire.Append(nil, &proof)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, b[:wire.VerdictSize]); err != nil {
		return hangup(err)
	}
	var v wire.Verdict
	if err := wire.Parse(b[:wire.VerdictSize], &v); err != nil {
		return err
	}
	if !sameMAC(v.MAC, id.mac(wire.LabelAccept, hello, &ch.Nonce)) {
		return errKey
	}
	return nil
}

// acceptHandshake is the accepting side of a handshake. The caller sets the deadline.
func (id *identity) acceptHandshake(conn net.Conn, seen *nonceRing) (wire.Hello, error) {
	var b [wire.HelloSize]byte
	var hello wire.Hello
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return hello, hangup(err)
	}
	if err := wire.Parse(b[:], &hello); err != nil {
		if errors.Is(err, wire.ErrVersion) {
			_, _ = conn.Write(wire.Append(nil, &wire.Challenge{})[:wire.ChallengeHead]) // so that the client can report it
		}
		return hello, err
	}
	if hello.To != id.self {
		return hello, fmt.Errorf("node %d wants node %d: %w", hello.From, hello.To, errOtherNode)
	}
	if seen.has(hello.Nonce) {
		return hello, errReplay
	}
	ch := wire.Challenge{Nonce: newNonce()}
	ch.MAC = id.mac(wire.LabelServer, b[:], &ch.Nonce)
	if _, err := conn.Write(wire.Append(nil, &ch)); err != nil {
		return hello, err
	}
	if err := id.checkProof(conn, b[:], &ch.Nonce); err != nil {
		return hello, err
	}
	seen.add(hello.Nonce)
	v := wire.Verdict{MAC: id.mac(wire.LabelAccept, b[:], &ch.Nonce)}
	_, err := conn.Write(wire.Append(nil, &v))
	return hello, err
}

// checkProof reads the client's proof. A client that hangs up on our proof has another key.
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

// nonceRing holds the client nonces of the latest handshakes. A replay fails anyway, because the
// server's nonce is new each time; with the ring it is recognised and gets no reply.
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
