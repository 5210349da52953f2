package exporter

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/integration/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestOpenMetrics(t *testing.T) {
	const in = `bivouac_jobs 2
bivouac_a_total{jobid="7"} 1
bivouac_b{jobid="7",x="1"} 2.5e+06
bivouac_c_seconds_bucket{jobid="7",le="+Inf"} 1
bivouac_c_seconds_sum{jobid="7"} 0.5
bivouac_c_seconds_count{jobid="7"} 1
bivouac_a_total{jobid="8"} 3
bivouac_d_seconds{jobid="8"} 4
`
	const want = `# TYPE bivouac_a counter
bivouac_a_total{jobid="7"} 1
bivouac_a_total{jobid="8"} 3
# TYPE bivouac_b gauge
bivouac_b{jobid="7",x="1"} 2.5e+06
# TYPE bivouac_c_seconds histogram
bivouac_c_seconds_bucket{jobid="7",le="+Inf"} 1
bivouac_c_seconds_sum{jobid="7"} 0.5
bivouac_c_seconds_count{jobid="7"} 1
# TYPE bivouac_d_seconds gauge
bivouac_d_seconds{jobid="8"} 4
# TYPE bivouac_jobs gauge
bivouac_jobs 2
# EOF
`
	if got := string(openMetrics([]byte(in))); got != want {
		t.Errorf("openMetrics = %s, want %s", got, want)
	}
	if got := string(openMetrics(nil)); got != "# EOF\n" {
		t.Errorf("openMetrics of nothing = %q", got)
	}
}

// write makes a file with a mode.
func write(t *testing.T, path, text string, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

func TestReadToken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string // in the error
	}{
		{"0123456789abcdef\n", 0o600, ""},
		{"0123456789abcdef", 0o400, ""},
		{"0123456789abcdef\n", 0o640, "mode 0640"},
		{"0123456789abcdef\n", 0o604, "chmod 600 " + path},
		{"0123456789abcde\n", 0o600, "one word"},
		{"0123456789 abcdef\n", 0o600, "one word"},
		{strings.Repeat("a", maxToken+1), 0o600, "one word"},
		{"", 0o600, "openssl rand"},
	} {
		write(t, path, c.text, c.mode)
		token, err := readToken(path)
		if c.want == "" && (err != nil || string(token) != strings.TrimSpace(c.text)) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.20q with mode %o: %q, %v, want %q", c.text, c.mode, token, err, c.want)
		}
	}
	if _, err := readToken(dir); err == nil || !strings.Contains(err.Error(), "no regular file") {
		t.Errorf("a directory: %v", err)
	}
	if _, err := readToken(path + "x"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if os.Geteuid() == 0 {
		write(t, path, "0123456789abcdef", 0o600)
		if err := os.Chown(path, 65534, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := readToken(path); err == nil || !strings.Contains(err.Error(), "belongs to uid 65534") {
			t.Errorf("a user's file: %v", err)
		}
	}
}

// served is an exporter with the token tokenA.
type served struct {
	t     *testing.T
	url   string
	token string // its file
	*http.Client
}

const tokenA, tokenB = "0123456789abcdef", "0123456789abcdeF"

func serve(t *testing.T, cfg Config) *served {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	s := &served{t: t, url: "http://" + l.Addr().String(), token: filepath.Join(t.TempDir(), "token"), Client: &http.Client{Transport: &http.Transport{}}}
	write(t, s.token, tokenA+"\n", 0o600)
	cfg.Listener, cfg.TokenFile, cfg.Log = l, s.token, logrus.NewEntry(log)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve = %v", err)
		}
		s.CloseIdleConnections()
	})
	return s
}

// get asks for something and returns the status, the answer and its type.
func (s *served) get(method, path, authorization string) (int, string, string) {
	s.t.Helper()
	req, err := http.NewRequest(method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	resp, err := s.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header.Get("Content-Type")
}

func TestServe(t *testing.T) {
	var fails error
	s := serve(t, Config{Samples: func(context.Context) ([]byte, error) { return []byte("bivouac_jobs 0\n"), fails }})
	for _, c := range []struct {
		method, path, authorization string
		status                      int
		text                        string
	}{
		{"GET", "/metrics", "Bearer " + tokenA, 200, "# TYPE bivouac_jobs gauge\nbivouac_jobs 0\n# EOF\n"},
		{"GET", "/metrics", "bearer  " + tokenA, 200, "bivouac_jobs 0"},
		{"GET", "/metrics", "", 401, "Authorization: Bearer"},
		{"GET", "/metrics", "Bearer " + tokenB, 401, "Authorization: Bearer"},
		{"GET", "/metrics", "Bearer " + tokenA + tokenA, 401, "Authorization: Bearer"},
		{"GET", "/metrics", "Bearer", 401, "Authorization: Bearer"},
		{"GET", "/metrics", "Basic " + tokenA, 401, "Authorization: Bearer"},
		{"GET", "/metrics", tokenA, 401, "Authorization: Bearer"},
		{"GET", "/", "", 401, "Authorization: Bearer"},
		{"GET", "/", "Bearer " + tokenA, 404, ""},
		{"POST", "/metrics", "Bearer " + tokenA, 405, ""},
	} {
		status, text, kind := s.get(c.method, c.path, c.authorization)
		if status != c.status || !strings.Contains(text, c.text) || strings.Contains(text, tokenA) || (status == 200) != (kind == "application/openmetrics-text; version=1.0.0; charset=utf-8") {
			t.Errorf("%s %s with %q: %d, %q, %s, want %d, %q", c.method, c.path, c.authorization, status, text, kind, c.status, c.text)
		}
	}
	fails = errors.New("no directory")
	if status, text, _ := s.get("GET", "/metrics", "Bearer "+tokenA); status != 500 || !strings.Contains(text, "no directory") {
		t.Errorf("without samples: %d %s", status, text)
	}
	fails = nil
	write(t, s.token, tokenB, 0o600)
	old, _, _ := s.get("GET", "/metrics", "Bearer "+tokenA)
	if now, _, _ := s.get("GET", "/metrics", "Bearer "+tokenB); old != 401 || now != 200 {
		t.Errorf("another token in the file: %d with the old one, %d with the new one", old, now)
	}
	write(t, s.token, tokenB, 0o644)
	if status, text, _ := s.get("GET", "/metrics", "Bearer "+tokenB); status != 500 || !strings.Contains(text, "token file") {
		t.Errorf("a token that others can read: %d %s", status, text)
	}
}

// TestServeRefuses: without a valid token file nothing is served.
func TestServeRefuses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := Serve(t.Context(), Config{Listener: l, TokenFile: filepath.Join(t.TempDir(), "none")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Serve = %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is open: %v", err)
	}
}

// TestScrapesAreBounded: so many at a time; who goes away ends what was collected for him.
func TestScrapesAreBounded(t *testing.T) {
	began, ended := make(chan bool), make(chan bool)
	s := serve(t, Config{Samples: func(ctx context.Context) ([]byte, error) {
		began <- true
		<-ctx.Done()
		ended <- true
		return nil, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	clients := make(chan error)
	for range maxScrapes {
		go func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/metrics", nil)
			if err == nil {
				req.Header.Set("Authorization", "Bearer "+tokenA)
				_, err = s.Do(req) //nolint:bodyclose // it fails
			}
			clients <- err
		}()
		<-began
	}
	if status, text, _ := s.get("GET", "/metrics", "Bearer "+tokenA); status != 503 || !strings.Contains(text, "try again") {
		t.Errorf("one too many: %d %s", status, text)
	}
	cancel()
	for range maxScrapes {
		if err := <-clients; !errors.Is(err, context.Canceled) {
			t.Errorf("client: %v", err)
		}
		<-ended
	}
}

// TestClientsAreBounded: a connection is accepted when another one has ended.
func TestClientsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	l := &limited{Listener: inner, free: make(chan struct{}, 1), closed: closed, ofHost: make(map[string]int)}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	for range 2 {
		conn, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	first := <-accepted
	select {
	case <-accepted:
		t.Error("two connections are open")
	case <-time.After(20 * time.Millisecond): // a fault shows sooner or later; its absence never fails
	}
	_, _ = first.Close(), first.Close()
	second := <-accepted
	if len(l.free) != 1 {
		t.Errorf("%d connections are counted, want 1", len(l.free))
	}
	close(closed) // while Accept waits for its turn
	<-accepted
	if err := errors.Join(second.Close(), inner.Close()); err != nil {
		t.Error(err)
	}
}

// TestHostsAreBounded: the connections of one host do not keep another one out.
func TestHostsAreBounded(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	l := &limited{Listener: inner, free: make(chan struct{}, maxClients), ofHost: make(map[string]int)}
	dial := func(host byte) {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}}
		conn, err := d.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	accept := func(want string) net.Conn {
		t.Helper()
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if got, _, _ := net.SplitHostPort(conn.RemoteAddr().String()); got != want {
			t.Errorf("a connection of %s is accepted, want one of %s", got, want)
		}
		return conn
	}
	for range maxOfHost + 3 {
		dial(2)
	}
	dial(1)
	first := accept("127.0.0.2")
	for range maxOfHost - 1 {
		accept("127.0.0.2")
	}
	accept("127.0.0.1")
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	dial(2)
	accept("127.0.0.2")
}

// TestTLS: with a certificate, the token goes through TLS alone.
func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := Config{TLSCert: filepath.Join(dir, "cert"), TLSKey: filepath.Join(dir, "key"), Samples: func(context.Context) ([]byte, error) { return nil, nil }}
	write(t, cfg.TLSCert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})), 0o644)
	write(t, cfg.TLSKey, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})), 0o600)
	s := serve(t, cfg)
	if status, _, _ := s.get("GET", "/metrics", "Bearer "+tokenA); status != 400 {
		t.Errorf("without TLS: %d", status)
	}
	s.url = "https" + strings.TrimPrefix(s.url, "http")
	pool := x509.NewCertPool()
	if parsed, err := x509.ParseCertificate(cert); err == nil {
		pool.AddCert(parsed)
	}
	s.Client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	if status, text, _ := s.get("GET", "/metrics", "Bearer "+tokenA); status != 200 || text != "# EOF\n" {
		t.Errorf("with TLS: %d %s", status, text)
	}
}
