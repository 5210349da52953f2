package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// The arms of reading in plan order.
const (
	armPlanned = "in plan order"
	armView    = "local"
	armUnknown = "without a plan"
)

var trainRemoteFigure = figure{
	name:   "train-remote",
	memory: 1 << 30,
	about: "4,000 small files opened, read and closed by one process, no page of them in the kernel: those that other nodes have, in the order of a plan (kind list), " +
		"beside the same files, each read on the node that has it through its kernel view; namespaces without limits",
	run: trainRemote,
}

func trainRemote(ctx context.Context, b *bench) (err error) {
	set, err := makeImages(b.amount(4000))
	if err != nil {
		return err
	}
	src := filepath.Join(b.home, setName)
	if err := set.write(src); err != nil {
		return err
	}
	nw, err := netcluster.NewNetwork(nodes)
	if err != nil {
		return err
	}
	defer nw.Close()
	if b.camp, err = pitchWith(ctx, b.program, local.Config{Dir: filepath.Join(b.home, "job"), Addrs: nw.Addrs(), Wrap: nw.Wrap}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.camp.down()) }()
	if err := b.addDataset(ctx, src, setName); err != nil {
		return err
	}
	if err := b.camp.awaitView(ctx, setName); err != nil {
		return err
	}
	remote, err := b.camp.elsewhere(ctx, set)
	if err != nil {
		return err
	}
	return b.readPlanned(ctx, remote)
}

// placed is a file on another node than the first.
type placed struct {
	path string // relative to the dataset
	node int
}

// elsewhere returns the files that are not on node 0.
func (c *camp) elsewhere(ctx context.Context, set images) (files []placed, err error) {
	for i := range set.sizes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		s := sample{size: set.sizes[i]}
		if err := s.find(c, filepath.Join(c.state.Nodes[0].Mount, "data", setName, set.path(i))); err != nil {
			return nil, err
		}
		if s.node != 0 {
			files = append(files, placed{set.path(i), s.node})
		}
	}
	return files, nil
}

func (b *bench) readPlanned(ctx context.Context, remote []placed) error {
	const row = "9 files of other nodes, no pages in the kernel"
	at := func(node int, f placed) string {
		return filepath.Join(b.camp.state.Nodes[node].Mount, "data", setName, f.path)
	}
	n := float64(len(remote))
	var paths, here []string // in a new order each round
	shuffle := func() error {
		rand.Shuffle(len(remote), func(i, j int) { remote[i], remote[j] = remote[j], remote[i] })
		paths, here = nil, nil
		for _, f := range remote {
			paths, here = append(paths, f.path), append(here, at(0, f))
		}
		return forgetPages(here)
	}
	plan := arm{armPlanned, func(ctx context.Context, _ int) error {
		if err := shuffle(); err != nil {
			return err
		}
		if err := b.camp.setPlan(ctx, accessplan.Plan{Dataset: setName, Kind: accessplan.List, Ranks: 1, Paths: paths}); err != nil {
			return err
		}
		u, err := b.readAll(here, 1)
		b.take(row, "/s", armPlanned, n/u.wall.Seconds())
		return errors.Join(err, b.camp.control(ctx, http.MethodDelete, "/v1/plan?dataset="+setName, nil))
	}}
	local := arm{armView, func(context.Context, int) error {
		var took time.Duration
		for node := 1; node < nodes; node++ {
			var paths []string
			for _, f := range remote {
				if f.node == node {
					paths = append(paths, at(node, f))
				}
			}
			if err := forgetPages(paths); err != nil {
				return err
			}
			u, err := b.readAll(paths, 1)
			if err != nil {
				return err
			}
			took += u.wall
		}
		b.take(row, "/s", armView, n/took.Seconds())
		return nil
	}}
	unknown := arm{armUnknown, func(context.Context, int) error {
		if err := shuffle(); err != nil {
			return err
		}
		u, err := b.readAll(here, 1)
		b.take("the same, without a plan", "/s", armUnknown, n/u.wall.Seconds())
		return err
	}}
	b.aim(row, "/s", ">= 0.7")
	arms := []arm{plan, local, unknown}
	if err := b.camp.control(ctx, http.MethodGet, "/v1/plan?dataset="+setName, nil); errors.Is(err, errNoRoute) {
		b.note("not available: %s (rows 9): the daemon takes no plan", armPlanned)
		arms = arms[1:]
	}
	return b.interleave(ctx, arms...)
}

// setPlan sets the plan of the job.
func (c *camp) setPlan(ctx context.Context, p accessplan.Plan) error {
	j, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return c.control(ctx, http.MethodPut, "/v1/plan", j)
}

// errNoRoute is returned for a request that the daemon does not support.
var errNoRoute = errors.New("no such request")

// control sends a request to the control socket of node 0.
func (c *camp) control(ctx context.Context, method, path string, body []byte) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", c.state.Nodes[0].Sock)
	}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://bivouac"+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return err
	case resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusNoContent:
		return nil
	// Without a handler the mux answers in plain text; a handler's own 404 names the dataset.
	case resp.StatusCode == http.StatusMethodNotAllowed, resp.StatusCode == http.StatusNotFound && bytes.HasPrefix(text, []byte("404 page not found")):
		return errNoRoute
	}
	return fmt.Errorf("%s %s: %s: %.200s", method, path, resp.Status, text)
}
