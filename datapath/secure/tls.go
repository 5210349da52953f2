package secure

import (
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"sync"
	"time"
)

// tlsConn is a connection protected by TLS.
type tlsConn struct {
	socket
	tls *tls.Conn
	out *batch
}

var _ Buffers = (*tlsConn)(nil)

func newTLS(conn net.Conn, s *Session) (*tlsConn, error) {
	server, err := certificate(s, "server")
	if err != nil {
		return nil, err
	}
	client, err := certificate(s, "client")
	if err != nil {
		return nil, err
	}
	c := &tlsConn{socket: socket{conn}, out: &batch{Conn: conn}}
	if s.Client {
		c.tls = tls.Client(c.out, config(client, server))
	} else {
		c.tls = tls.Server(c.out, config(server, client))
	}
	if err := c.tls.Handshake(); err != nil {
		return nil, tampered(err)
	}
	return c, nil
}

// config is the only TLS configuration: own proves this end, and peer is the only certificate accepted. No name and no
// authority is verified.
func config(own, peer tls.Certificate) *tls.Config {
	want := peer.PrivateKey.(ed25519.PrivateKey).Public().(ed25519.PublicKey)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own},
		InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert, // VerifyConnection verifies instead
		VerifyConnection: func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 1 && want.Equal(cs.PeerCertificates[0].PublicKey) {
				return nil
			}
			return fmt.Errorf("the certificate of the peer is not derived from the job key: %w", ErrTampered)
		},
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
	}
}

// certificate derives the certificate of one end. Only its key matters.
func certificate(s *Session, end string) (tls.Certificate, error) {
	seed, err := s.key("tls "+end, ed25519.SeedSize)
	if err != nil {
		return tls.Certificate{}, err
	}
	key := ed25519.NewKeyFromSeed(seed)
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0)}
	der, err := x509.CreateCertificate(nil, t, t, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// Read returns decrypted bytes.
func (c *tlsConn) Read(p []byte) (int, error) {
	n, err := c.tls.Read(p)
	if err == io.ErrUnexpectedEOF { // without close_notify
		err = io.EOF
	}
	return n, tampered(err)
}

// Write encrypts p.
func (c *tlsConn) Write(p []byte) (int, error) {
	n, err := c.WriteBuffers(net.Buffers{p})
	return int(n), err
}

// WriteBuffers encrypts b.
func (c *tlsConn) WriteBuffers(b net.Buffers) (n int64, err error) {
	c.out.collect()
	for _, p := range b {
		k, err := c.tls.Write(p)
		n += int64(k)
		if err != nil {
			_ = c.out.flush() // the error of TLS is more specific
			return n, err
		}
	}
	return n, c.out.flush()
}

// tampered adds ErrTampered to an error that the TLS of this end has detected in received data.
func tampered(err error) error {
	var head tls.RecordHeaderError
	var op *net.OpError
	if errors.As(err, &head) || errors.As(err, &op) && op.Op == "local error" {
		return fmt.Errorf("%v: %w", err, ErrTampered)
	}
	return err
}

// batchSize is how many bytes of records go to the socket in one write. TLS writes them one by one, 16 KiB each.
const batchSize = 128 << 10

// batches pools the memory of batches, so that idle connections need none.
var batches = sync.Pool{New: func() any {
	b := make([]byte, 0, batchSize+32<<10)
	return &b
}}

// batch is the connection below TLS. It collects the records of WriteBuffers.
type batch struct {
	net.Conn

	mu      sync.Mutex
	writers int     // guarded by mu: calls of collect without their flush
	buf     *[]byte // guarded by mu: nil if nothing is collected
}

// collect begins a collection.
func (b *batch) collect() {
	b.mu.Lock()
	b.writers++
	b.mu.Unlock()
}

// flush ends a collection and sends it.
func (b *batch) flush() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.writers--
	return b.send()
}

// Write implements net.Conn for TLS: p consists of whole records.
func (b *batch) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buf == nil {
		b.buf = batches.Get().(*[]byte)
	}
	*b.buf = append(*b.buf, p...)
	if b.writers > 0 && len(*b.buf) < batchSize {
		return len(p), nil
	}
	if err := b.send(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// send writes the collected records. Called with mu.
func (b *batch) send() error {
	if b.buf == nil {
		return nil
	}
	_, err := b.Conn.Write(*b.buf)
	*b.buf = (*b.buf)[:0]
	batches.Put(b.buf)
	b.buf = nil
	return err
}
