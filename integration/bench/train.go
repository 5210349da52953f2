package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/deploy/simulate"
)

// script is one rank of the training.
//
//go:embed train.py
var script []byte

// images is the dataset: JPEG-like files of lognormal size, in 64 classes.
type images struct {
	sizes []int64 // in ImageFolder's order
	total int64
}

const classes = 64

// makeImages makes a set of n files.
func makeImages(n int) (images, error) {
	s := images{}
	var err error
	s.sizes, err = simulate.Lognormal(n, setMean, setSpread, 1)
	for i := range s.sizes {
		s.sizes[i] = max(s.sizes[i], 1024) // train.py reads this much
		s.total += s.sizes[i]
	}
	return s, err
}

// path returns the path of file i: names sort like numbers.
func (s images) path(i int) string {
	return fmt.Sprintf("class%02d/sample%06d.jpg", i*classes/len(s.sizes), i)
}

// write makes the tree.
func (s images) write(dir string) error {
	rng := rand.New(rand.NewPCG(1, 2))
	for i, size := range s.sizes {
		p := filepath.Join(dir, s.path(i))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(p, noise(rng, size), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// training is the setup shared by all arms.
type training struct {
	python string
	module string // directory of the Python package
	script string // its path
	epochs int
	batch  int
	work   int           // workers per rank
	step   time.Duration // for all ranks together
	seed   int
}

// rankResult is the output of train.py.
type rankResult struct {
	Files  int `json:"files"`
	Epochs []struct {
		Seconds float64   `json:"seconds"`
		Waits   []float64 `json:"waits"`
		Indices [][]int   `json:"indices"`
		Sums    [][]int64 `json:"sums"`
		Reads   float64   `json:"reads"`
	} `json:"epochs"`
	Loss  string `json:"loss"`
	Model int64  `json:"model"`
}

// rank is a running train.py.
type rank struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// ranks holds all ranks, which synchronize after each step.
type ranks struct {
	all    []*rank
	epochs int
}

// start starts a rank for each directory; camps has the nodes' mounts for the Python package, or is empty. When start
// returns, the ranks have imported their modules.
func (t training) start(ctx context.Context, sampler string, dirs, camps []string) (rs *ranks, err error) {
	rs = &ranks{epochs: t.epochs}
	defer func() {
		if err != nil {
			rs.end()
		}
	}()
	for i, dir := range dirs {
		c := exec.CommandContext(ctx, t.python, t.script, "--data", dir, "--sampler", sampler, "--epochs", strconv.Itoa(t.epochs),
			"--batch", strconv.Itoa(t.batch), "--workers", strconv.Itoa(t.work), "--step", fmt.Sprint(t.step.Seconds()), "--seed", strconv.Itoa(t.seed))
		c.Env = append(os.Environ(), "RANK="+strconv.Itoa(i), "WORLD_SIZE="+strconv.Itoa(len(dirs)), "PYTHONPATH="+t.module, "OMP_NUM_THREADS=1", "PYTHONDONTWRITEBYTECODE=1")
		if camps != nil {
			c.Env = append(c.Env, "BIVOUAC="+camps[i], "BIVOUAC_DATA="+filepath.Join(camps[i], "data"), "BIVOUAC_SCRATCH="+filepath.Join(camps[i], "scratch"))
		}
		c.Stderr = os.Stderr
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its workers join its group
		r := &rank{cmd: c}
		if r.in, err = c.StdinPipe(); err != nil {
			return rs, err
		}
		out, err := c.StdoutPipe()
		if err != nil {
			return rs, err
		}
		if err := c.Start(); err != nil {
			return rs, fmt.Errorf("%s: %w", t.python, err)
		}
		r.out = bufio.NewReader(out)
		rs.all = append(rs.all, r)
	}
	_, err = rs.meet("ready")
	return rs, err
}

// meet waits until all ranks print the same line, one of want, and returns it. The ranks then wait for proceed.
func (rs *ranks) meet(want ...string) (string, error) {
	said := make([]string, len(rs.all))
	var g errgroup.Group
	for i, r := range rs.all {
		g.Go(func() error {
			line, err := r.out.ReadString('\n')
			said[i] = strings.TrimSpace(line)
			if err != nil {
				return fmt.Errorf("rank %d has ended: %w: its complaint is above", i, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	for i, s := range said {
		if !slices.Contains(want, s) || s != said[0] {
			return "", fmt.Errorf("rank %d says %.80q and rank 0 %.80q, want one of %q of all: %w", i, s, said[0], want, syscall.EPROTO)
		}
	}
	return said[0], nil
}

func (rs *ranks) proceed() {
	for _, r := range rs.all {
		_, _ = io.WriteString(r.in, "\n") // a dead rank is noticed when they meet
	}
}

// end kills the ranks that still run.
func (rs *ranks) end() {
	for _, r := range rs.all {
		_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) // usually ended already
		_ = r.in.Close()
		_ = r.cmd.Wait() // it was killed, or was waited for
	}
}

// train runs the training. stepped is called after each common step, with the number of steps so far, and ended after
// each epoch.
func (rs *ranks) train(stepped, ended func(n int) error) ([]rankResult, error) {
	rs.proceed()
	for steps, epochs := 0, 0; ; {
		said, err := rs.meet("step", "epoch")
		if err != nil {
			return nil, err
		}
		if said == "step" {
			steps++
			err = stepped(steps)
		} else {
			epochs++
			err = ended(epochs)
		}
		if err != nil {
			return nil, err
		}
		rs.proceed()
		if said == "epoch" && epochs == rs.epochs {
			break
		}
	}
	all := make([]rankResult, len(rs.all))
	for i, r := range rs.all {
		err := json.NewDecoder(r.out).Decode(&all[i])
		if err = errors.Join(err, r.cmd.Wait()); err != nil {
			return nil, fmt.Errorf("rank %d: %w", i, err)
		}
	}
	return all, nil
}
