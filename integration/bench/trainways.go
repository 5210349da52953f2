package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/deploy/local"
	options "github.com/bivouacfs/bivouac/deploy/pitch"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
)

// school is the setup of training measurements: a source, a network, a dataset, and the training parameters.
type school struct {
	b      *bench
	s      *site
	net    *netcluster.Network
	limits slowpfs.Limits
	set    images
	t      training
	room   int64 // bytes per node; 0: no limit
	lacks  map[string]string
}

// way is one way to train.
type way struct {
	name    string
	source  string                          // in the site; "" if no job is started
	options string                          // for the stage-in
	sampler string                          // for train.py
	dirs    []string                        // if no job is started
	ready   func(daemon.DatasetStatus) bool // when training starts
	needs   []string                        // required capabilities, as in school.lacks
	rows    string                          // the rows it is for
	stepped func(steps int) error           // after each step
}

// outcome is the result of one run of a way.
type outcome struct {
	first   float64 // seconds from the request to the end of the first step
	ranks   []rankResult
	epochs  []epochSeen
	read    slowpfs.Counts // from the source, including staging
	trained float64        // seconds of all epochs
	ended   time.Time
}

// epochSeen holds the independent counts of an epoch.
type epochSeen struct {
	seconds float64
	source  slowpfs.Counts
	wire    float64 // bytes sent by the nodes' interfaces
	busy    float64 // share of the processors' time
}

// witness holds the counters that are independent of Bivouac.
type witness struct {
	at     time.Time
	source slowpfs.Counts
	wire   int64
	cpu    processors
}

func (sc *school) look(ctx context.Context) (w witness, err error) {
	st, err := sc.s.client.Stats(ctx)
	if err != nil {
		return w, err
	}
	w.source = st.Sum
	for i := range nodes {
		n, err := sc.net.Sent(i)
		if err != nil {
			return w, err
		}
		w.wire += n
	}
	w.cpu, err = procStat()
	w.at = time.Now()
	return w, err
}

func (w witness) since(before witness) epochSeen {
	e := epochSeen{seconds: w.at.Sub(before.at).Seconds(), source: w.source.Since(before.source), wire: float64(w.wire - before.wire)}
	if all := w.cpu.all - before.cpu.all; all > 0 {
		e.busy = 1 - (w.cpu.idle-before.cpu.idle)/all
	}
	return e
}

// train runs a way once.
func (sc *school) train(ctx context.Context, w way) (o outcome, err error) {
	dirs, camps := w.dirs, []string(nil)
	request := func() error { return nil }
	if w.source != "" {
		spec, err := options.ParseStageIn(sc.s.own(w.source) + ":set" + w.options)
		if err != nil {
			return o, err
		}
		c, err := pitchWith(ctx, sc.b.program, local.Config{
			Dir: filepath.Join(sc.b.home, "job"), Addrs: sc.net.Addrs(), Capacity: sc.room,
			Wrap: func(i int) []string { return slices.Concat(sc.net.Wrap(i), sc.s.wrap(i)) },
		})
		if err != nil {
			return o, err
		}
		defer func() { err = errors.Join(err, c.down()) }()
		for _, n := range c.state.Nodes {
			camps = append(camps, n.Mount)
			dirs = append(dirs, filepath.Join(n.Mount, "data", "set"))
		}
		request = func() error {
			if _, err := daemon.NewCtl(c.state.Nodes[0].Sock).StageIn(ctx, spec); err != nil {
				return err
			}
			for _, n := range c.state.Nodes {
				if err := until(ctx, daemon.NewCtl(n.Sock), w.ready); err != nil {
					return err
				}
			}
			return nil
		}
	}
	rs, err := sc.t.start(ctx, w.sampler, dirs, camps)
	if err != nil {
		return o, err
	}
	defer rs.end()
	unix.Sync()
	return sc.observe(ctx, w, rs, request)
}

// observe makes the request, runs the training, and records the observations.
func (sc *school) observe(ctx context.Context, w way, rs *ranks, request func() error) (o outcome, err error) {
	began, err := sc.look(ctx)
	if err == nil {
		err = request()
	}
	if err != nil {
		return o, err
	}
	before, err := sc.look(ctx)
	if err != nil {
		return o, err
	}
	start := before.at
	o.ranks, err = rs.train(func(n int) error {
		if n == 1 {
			o.first = time.Since(began.at).Seconds()
		}
		if w.stepped != nil {
			return w.stepped(n)
		}
		return nil
	}, func(int) error {
		now, err := sc.look(ctx)
		o.epochs = append(o.epochs, now.since(before))
		o.read, o.trained, o.ended = now.source.Since(began.source), now.at.Sub(start).Seconds(), now.at
		before = now
		return err
	})
	for i := range o.epochs {
		o.epochs[i].seconds = 0
		for _, r := range o.ranks { // the ranks have listed the tree before
			o.epochs[i].seconds = max(o.epochs[i].seconds, r.Epochs[i].Seconds)
		}
	}
	return o, err
}

// The capabilities that a way may need.
const (
	needPlan   = "bivouac plan"
	needModule = "the Python package"
)

// subcommand matches the names of commands in the program's help.
var subcommand = regexp.MustCompile(`(?m)^  ([a-z-]+) +\S`)

// examine determines the capabilities that the program and its Python package lack.
func (sc *school) examine(ctx context.Context) error {
	sc.lacks = make(map[string]string)
	out, err := exec.CommandContext(ctx, sc.b.program, "help").Output()
	if err != nil {
		return fmt.Errorf("%s help: %w", sc.b.program, err)
	}
	if !slices.ContainsFunc(subcommand.FindAllStringSubmatch(string(out), -1), func(m []string) bool { return m[1] == "plan" }) {
		sc.lacks[needPlan] = "the program has no bivouac plan: prefetch in every epoch"
	}
	c := exec.CommandContext(ctx, sc.t.python, "-c", "import bivouac.torch as t; t.DistributedSampler, t.LocalitySampler, t.ChunkShuffleSampler")
	c.Env = append(os.Environ(), "PYTHONPATH="+sc.t.module, "PYTHONDONTWRITEBYTECODE=1")
	if out, err := c.CombinedOutput(); err != nil {
		sc.lacks[needModule] = fmt.Sprintf("%s has no samplers: %.200s", sc.t.module, lastLine(out))
	}
	return nil
}

// seeded returns the stage-in option for the plain sampler's order.
func (sc *school) seeded() string {
	seed := fmt.Sprintf(",order=seed:%d", sc.t.seed)
	if with := fmt.Sprintf("%s,ranks=%d", seed, nodes); parses(with) == nil { // unknown without Slurm
		return with
	}
	return seed
}

func parses(stageIn string) error {
	_, err := options.ParseStageIn("/x:set" + stageIn)
	return err
}

// unable returns why a way cannot be measured, or "".
func (sc *school) unable(w way) string {
	for _, n := range w.needs {
		if why := sc.lacks[n]; why != "" {
			return why
		}
	}
	if w.source != "" {
		if err := parses(w.options); err != nil {
			return err.Error()
		}
	}
	return ""
}
