package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein"
)

// Ctl asks a daemon over its control socket.
type Ctl struct {
	Path string // of the socket
	http http.Client
}

// NewCtl makes a client of the socket path. It connects when it is used.
func NewCtl(path string) *Ctl {
	c := &Ctl{Path: path}
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	return c
}

// Status asks how the job stands.
func (c *Ctl) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// FreshStatus asks for what all nodes have agreed on by now; Status may be a
// moment older.
func (c *Ctl) FreshStatus(ctx context.Context) (Status, error) {
	var s Status
	return s, c.do(ctx, http.MethodGet, "/v1/status?fresh=1", nil, &s)
}

// StageIn begins a stage-in.
func (c *Ctl) StageIn(ctx context.Context, s DatasetSpec) (StageInReply, error) {
	var r StageInReply
	return r, c.do(ctx, http.MethodPost, "/v1/stage-in", s, &r)
}

// StageOut copies a directory of scratch out by all nodes, and waits.
func (c *Ctl) StageOut(ctx context.Context, o OutSpec) (stagein.OutResult, error) {
	var r StageOutReply
	return r.Result, c.do(ctx, http.MethodPost, "/v1/stage-out", o, &r)
}

// Metrics returns the Prometheus text.
func (c *Ctl) Metrics(ctx context.Context) (string, error) {
	resp, err := c.send(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	return string(b), err
}

func (c *Ctl) send(ctx context.Context, method, path string, q any) (*http.Response, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://bivouac"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("no daemon answers at %s: is the job still running?", c.Path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s belongs to another user's job", c.Path)
	}
	return resp, err
}

func (c *Ctl) do(ctx context.Context, method, path string, q, reply any) error {
	resp, err := c.send(ctx, method, path, q)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(io.LimitReader(resp.Body, 64<<20))
	if resp.StatusCode != http.StatusOK {
		var e CtlError
		if dec.Decode(&e) != nil || e.Error == "" {
			return fmt.Errorf("the daemon answers %s", resp.Status)
		}
		return errors.New(e.Error)
	}
	return dec.Decode(reply)
}
