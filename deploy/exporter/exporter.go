// Package exporter serves the metrics of a node's jobs to Prometheus over TCP. Its one idea: every request
// must carry a token, and before it has shown one, a client costs a bounded connection for some seconds and nothing else.
// It does not know where samples come from, nor what they mean.
package exporter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	headTime    = 5 * time.Second  // for a request to arrive
	sendTime    = 30 * time.Second // from then on, for its answer to be taken
	collectTime = 8 * time.Second  // Prometheus waits for 10 s by default
	maxScrapes  = 2                // at once: two Prometheus servers
	maxClients  = 64               // connections at once
	maxOfHost   = 8                // of them from one address
	minToken    = 16               // characters
	maxToken    = 4 << 10
)

// Config configures Serve.
type Config struct {
	Listener  net.Listener
	TokenFile string // read at each request, so that it can be replaced
	TLSCert   string // with TLSKey; "": HTTP
	TLSKey    string
	// Samples returns the samples of this node, one on each line, in the Prometheus text format.
	Samples func(context.Context) ([]byte, error)
	Log     *logrus.Entry
}

// Serve answers requests until ctx ends. It closes the listener.
func Serve(ctx context.Context, cfg Config) error {
	if _, err := readToken(cfg.TokenFile); err != nil {
		return errors.Join(err, cfg.Listener.Close())
	}
	h := &handler{cfg: cfg, scrapes: make(chan struct{}, maxScrapes)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", h.metrics)
	errorLog := cfg.Log.WriterLevel(logrus.DebugLevel)
	defer errorLog.Close()
	s := http.Server{
		Handler: h.authorized(mux), ReadTimeout: headTime, WriteTimeout: headTime + sendTime, MaxHeaderBytes: 16 << 10,
		ErrorLog: stdlog.New(errorLog, "", 0), TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){}, // one request a connection
	}
	s.SetKeepAlivesEnabled(false)
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = s.Close()
	})
	l := &limited{Listener: cfg.Listener, free: make(chan struct{}, maxClients), closed: ctx.Done(), ofHost: make(map[string]int)}
	var err error
	if cfg.TLSCert != "" {
		err = s.ServeTLS(l, cfg.TLSCert, cfg.TLSKey)
	} else {
		err = s.Serve(l)
	}
	if stop() {
		return err
	}
	<-ended
	return nil
}

type handler struct {
	cfg     Config
	scrapes chan struct{}
}

// authorized passes requests with the token on.
func (h *handler) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, err := readToken(h.cfg.TokenFile)
		if err != nil {
			h.cfg.Log.WithError(err).Error("no request is answered until the token file is valid")
			http.Error(w, "the token file of bivouac metrics is not valid: see its log", http.StatusInternalServerError)
			return
		}
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		want, got := sha256.Sum256(token), sha256.Sum256([]byte(strings.TrimSpace(given))) // of one length
		if subtle.ConstantTimeCompare(want[:], got[:]) == 0 || !strings.EqualFold(scheme, "Bearer") {
			w.Header().Set("WWW-Authenticate", `Bearer realm="bivouac"`)
			http.Error(w, "send the header Authorization: Bearer TOKEN, with the token in the token file of bivouac metrics", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	select {
	case h.scrapes <- struct{}{}:
		defer func() { <-h.scrapes }()
	default:
		http.Error(w, "other requests for metrics are being answered: try again later", http.StatusServiceUnavailable)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), collectTime)
	defer cancel()
	samples, err := h.cfg.Samples(ctx)
	if err != nil {
		h.cfg.Log.WithError(err).Error("could not collect the metrics of this node")
		http.Error(w, "could not collect the metrics of this node: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
	_, _ = w.Write(openMetrics(samples)) // the client may be gone
}

// readToken reads a file that only its owner, root or this user, can read.
func readToken(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe does not block
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	owner := st.Sys().(*syscall.Stat_t).Uid
	switch {
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("token file %s is no regular file", path)
	case owner != 0 && int(owner) != os.Geteuid():
		return nil, fmt.Errorf("token file %s belongs to uid %d: chown root %s", path, owner, path)
	case st.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("token file %s has mode %04o, so that others can use it: chmod 600 %s, and make a new token", path, st.Mode().Perm(), path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxToken+1))
	if err != nil {
		return nil, fmt.Errorf("token file: %w", err)
	}
	token := bytes.TrimSpace(b)
	if len(token) < minToken || len(b) > maxToken || len(bytes.Fields(token)) != 1 {
		return nil, fmt.Errorf("token file %s needs one word of %d to %d characters: (umask 077; openssl rand -hex 32 > %s)", path, minToken, maxToken, path)
	}
	return token, nil
}
