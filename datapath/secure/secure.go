package secure

import (
	"crypto/hkdf"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Mode is how the connections of a job are protected after the handshake.
type Mode uint8

// The modes. They are sent in the handshake: append-only.
const (
	Plain  Mode = 0 // only checksums, against accidental corruption
	Frames Mode = 1 // authenticated
	TLS    Mode = 2 // authenticated and encrypted
)

var names = [...]string{Plain: "off", Frames: "auth=frames", TLS: "encrypt=tls"}

// String returns the option that sets m.
func (m Mode) String() string {
	if int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("protection %d", uint8(m))
}

// Parse parses the values of the options encrypt= and auth=; an empty value means not set. With both, TLS
// authenticates.
func Parse(encrypt, auth string) (Mode, error) {
	switch {
	case encrypt != "" && encrypt != "tls":
		return Plain, fmt.Errorf("encrypt: %q, want tls", encrypt)
	case auth != "" && auth != "frames":
		return Plain, fmt.Errorf("auth: %q, want frames", auth)
	case encrypt != "":
		return TLS, nil
	case auth != "":
		return Frames, nil
	}
	return Plain, nil
}

// MarshalText writes the option.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is the inverse of MarshalText.
func (m *Mode) UnmarshalText(b []byte) error {
	for i, n := range names {
		if n == string(b) {
			*m = Mode(i)
			return nil
		}
	}
	return fmt.Errorf("protection %q, want one of %q", b, names)
}

// ErrTampered is the cause if received bytes differ from those that the peer sent.
var ErrTampered = fmt.Errorf("connection tampered with: %w", syscall.EBADMSG)

// Session is the state that both ends of a connection share after the handshake.
type Session struct {
	Key        []byte // the job key
	Transcript []byte // of the handshake, with the nonces of both ends
	Client     bool   // this end dialled
}

// key derives a key of n bytes for one use.
func (s *Session) key(use string, n int) ([]byte, error) {
	return hkdf.Key(sha256.New, s.Key, s.Transcript, "bivouac "+use, n)
}

// Protect returns conn with the protection of m. For TLS it does a handshake: the caller sets the deadline. If it
// fails, the caller closes conn.
func Protect(conn net.Conn, m Mode, s Session) (net.Conn, error) {
	switch m {
	case Plain:
		return conn, nil
	case Frames:
		return newFrames(conn, &s)
	case TLS:
		return newTLS(conn, &s)
	}
	return nil, errors.New(m.String() + " is not known here")
}

// Buffers is implemented by protected connections: it sends all of b in as few system calls as possible.
type Buffers interface {
	WriteBuffers(b net.Buffers) (int64, error)
}
