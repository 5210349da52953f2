// Package secure protects a connection between two daemons after both have proved that they have the
// job key: with a MAC per record (Frames), or with TLS 1.3 (TLS). A protected connection is a net.Conn
// that hides its socket, so that no caller can reach it with sendfile, splice or writev. The package
// makes no connection and checks no identity beyond the job key.
//
// All keys are derived by HKDF-SHA-256 from the job key. The salt is the transcript of the handshake, with a fresh
// nonce from either side, so that no two connections share a key, and a recording of one connection is not accepted on
// another.
//
// # Frames
//
// Each direction has an AES-256-GCM key of its own. A record is
//
//	0   4  n: bytes of payload, little-endian, 1 to MaxRecord
//	4   n  payload, in plain text
//	…  16  GMAC of the payload under the nonce 00000000 ‖ number of the record (8 bytes, little-endian)
//
// The number of a record counts from 0 and is not sent: a record that was changed, left out, repeated or moved does not
// verify. No byte of a record is returned before it is verified.
//
// # TLS
//
// TLS 1.3 without a certificate authority: each end derives the Ed25519 certificates of both ends and accepts no other.
// The key exchange is ephemeral: a job key that leaks later does not decrypt recorded traffic. Sessions are not
// resumed. A connection ends without close_notify, since the frames of package wire carry their lengths. Package
// crypto/tls does not renew keys; kernel TLS is not used.
//
// # Errors
//
// ErrTampered is the cause if received bytes differ from those that the peer sent. The connection cannot be used any
// more.
package secure
