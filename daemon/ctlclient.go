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
	"net/url"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/home"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/stagein"
)

// Ctl calls a daemon over its control socket.
type Ctl struct {
	Path string // of the socket
	http http.Client
}

// NewCtl returns a client of the socket path. It connects on first use.
func NewCtl(path string) *Ctl {
	c := &Ctl{Path: path}
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}}
	return c
}

// Status returns the status of the job.
func (c *Ctl) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.do(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// FreshStatus returns a status that includes all decisions of the group so far; that of Status may be a moment older.
func (c *Ctl) FreshStatus(ctx context.Context) (Status, error) {
	var s Status
	return s, c.do(ctx, http.MethodGet, "/v1/status?fresh=1", nil, &s)
}

// TrainingStatus is Status, and includes how training reads the datasets on all nodes.
func (c *Ctl) TrainingStatus(ctx context.Context) (Status, error) {
	var s Status
	return s, c.do(ctx, http.MethodGet, "/v1/status?training=1", nil, &s)
}

// StageIn begins a stage-in.
func (c *Ctl) StageIn(ctx context.Context, s job.Dataset) (StageInReply, error) {
	var r StageInReply
	return r, c.do(ctx, http.MethodPost, "/v1/stage-in", s, &r)
}

// Remove ends a dataset.
func (c *Ctl) Remove(ctx context.Context, q RemoveRequest) error {
	return c.do(ctx, http.MethodPost, "/v1/remove", q, new(struct{}))
}

// Skips returns the entries of the dataset name that could not be read and were left out.
func (c *Ctl) Skips(ctx context.Context, name string) ([]stagein.Skip, error) {
	resp, err := c.send(ctx, http.MethodGet, "/v1/skips?name="+url.QueryEscape(name), nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	dec := json.NewDecoder(resp.Body)
	if resp.StatusCode != http.StatusOK {
		return nil, refusal(dec, resp)
	}
	var all []stagein.Skip
	for {
		var s stagein.Skip
		if err := dec.Decode(&s); err == io.EOF {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
}

// copy writes the answer to a GET to w.
func (c *Ctl) copy(ctx context.Context, path string, w io.Writer) error {
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return refusal(json.NewDecoder(resp.Body), resp)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}

// refusal returns the error of an answer other than 200.
func refusal(dec *json.Decoder, resp *http.Response) error {
	var e CtlError
	if dec.Decode(&e) != nil || e.Error == "" {
		return fmt.Errorf("daemon returned %s", resp.Status)
	}
	return errors.New(e.Error)
}

// StageOut has all nodes copy a directory of scratch out, and waits.
func (c *Ctl) StageOut(ctx context.Context, o job.StageOut) (stageout.Result, error) {
	var r StageOutReply
	return r.Result, c.do(ctx, http.MethodPost, "/v1/stage-out", o, &r)
}

// SetOutput sets the file of the job's output.
func (c *Ctl) SetOutput(ctx context.Context, o stageout.Output) error {
	return c.do(ctx, http.MethodPost, "/v1/output", o, &struct{}{})
}

// Metrics returns the metrics in Prometheus text format.
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
	case err != nil && errors.Is(ctx.Err(), context.Canceled):
		return nil, errors.New("interrupted before the daemon had answered")
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
		return refusal(dec, resp)
	}
	return dec.Decode(reply)
}

// Check compares the live realm on all nodes, and waits.
func (c *Ctl) Check(ctx context.Context) (home.CheckResult, error) {
	var r home.CheckResult
	return r, c.do(ctx, http.MethodPost, "/v1/check", nil, &r)
}

// Verify has all nodes verify a dataset, and waits.
func (c *Ctl) Verify(ctx context.Context, s dataset.VerifySpec) (dataset.VerifyResult, error) {
	var r dataset.VerifyResult
	return r, c.do(ctx, http.MethodPost, "/v1/verify", s, &r)
}

// Sums writes the SHA-256 of every file of the dataset name to w, as listed by the last Verify with SHA-256.
func (c *Ctl) Sums(ctx context.Context, name string, w io.Writer) error {
	return c.copy(ctx, "/v1/sums?name="+url.QueryEscape(name), w)
}
