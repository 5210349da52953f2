package slowpfs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"
)

// Client controls a Server in another process.
type Client struct {
	http http.Client
}

// NewClient returns a client for the socket at path. It connects at its first use.
func NewClient(path string) *Client {
	c := &Client{}
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	return c
}

// Stats returns the server's counts so far.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	var s Stats
	b, err := c.do(ctx, http.MethodGet, "/stats", nil)
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal(b, &s)
}

// SetLimits changes the limits of the server.
func (c *Client) SetLimits(ctx context.Context, l Limits) error {
	b, err := json.Marshal(l)
	if err == nil {
		_, err = c.do(ctx, http.MethodPost, "/limits", b)
	}
	return err
}

func (c *Client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://slowpfs"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("slowpfs: %s: %s: %w", resp.Status, bytes.TrimSpace(b), syscall.EPROTO)
	}
	return b, err
}
