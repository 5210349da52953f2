package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// config holds the command line.
type config struct {
	program string
	dir     string
	json    string
	only    *regexp.Regexp
	arms    *regexp.Regexp
	rounds  int
	quick   bool
	stage   bool
	train   bool
	faults  bool
	soak    string
	python  string // an interpreter with PyTorch
	module  string // directory of the Python package
	veth    bool
}

// figure is one section of the table.
type figure struct {
	name  string
	about string // one line: the operation and the arms
	// memory is the number of bytes that an arm uses on the machine, including page caches, if it stores much: they
	// are backed before; see backMemory.
	memory int64
	run    func(ctx context.Context, b *bench) error
}

// bench is a run: the systems to measure, and the samples so far.
type bench struct {
	config
	home  string              // this run's own directory
	camp  *camp               // nil with --stage
	loop  *loopback           // nil with --stage
	net   *netcluster.Network // nil without --veth
	set   *dataset            // once it is staged
	lists int                 // number of lists given to workers
	table table
	figure
}

func run(ctx context.Context, cfg config) (err error) {
	b := &bench{config: cfg, table: newTable()}
	if b.quick {
		b.rounds = 1
	}
	// A socket's path below it must be short.
	if b.home, err = os.MkdirTemp(cfg.dir, "bench"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.home)) }()
	switch {
	case b.stage:
		err = b.measure(ctx, stageFigures)
	case b.train:
		err = b.measure(ctx, trainFigures)
	case b.faults:
		err = b.measure(ctx, faultFigures)
	default:
		err = b.live(ctx)
	}
	if err != nil {
		return err
	}
	b.table.print(os.Stdout)
	if b.json == "" {
		return nil
	}
	return b.table.save(b.json)
}

// live measures scratch and datasets: one job and one loopback serve all figures.
func (b *bench) live(ctx context.Context) (err error) {
	job, measured := local.Config{Dir: filepath.Join(b.home, "job")}, figures
	if b.veth {
		if b.net, err = netcluster.NewNetwork(nodes); err != nil {
			return err
		}
		defer b.net.Close()
		job.Addrs, job.Wrap, measured = b.net.Addrs(), b.net.Wrap, vethFigures
	}
	if b.camp, err = pitchWith(ctx, b.program, job); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.camp.down()) }()
	defer func() { err = errors.Join(err, b.hideBelow()) }()
	if b.loop, err = newLoopback(filepath.Join(b.home, "under"), filepath.Join(b.home, "loop"), loopFile); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.loop.close()) }()
	return b.measure(ctx, measured)
}

// in returns the prefix of a command that must run on a node, and the node's address.
func (b *bench) in(node int) (wrap []string, host string) {
	if b.net == nil {
		return nil, "127.0.0.1"
	}
	return b.net.Wrap(node), b.net.Host(node)
}

func (b *bench) measure(ctx context.Context, figures []figure) error {
	n := 0
	for _, f := range figures {
		if !b.only.MatchString(f.name) {
			continue
		}
		n++
		b.figure = f
		b.table.begin(f)
		began := time.Now()
		if err := f.run(ctx, b); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: measured in %v\n", f.name, time.Since(began).Round(time.Second))
	}
	if n == 0 {
		return fmt.Errorf("no figure matches %v", b.only)
	}
	return nil
}

// arm is one side of a comparison.
type arm struct {
	name string
	run  func(ctx context.Context, round int) error
}

// interleave runs all arms once in each round, in reverse order in every other round.
func (b *bench) interleave(ctx context.Context, arms ...arm) error {
	for round := range b.rounds {
		for i := range arms {
			if round%2 == 1 {
				i = len(arms) - 1 - i
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			if !b.quick {
				if err := backMemory(b.memory); err != nil {
					return err
				}
			}
			if err := arms[i].run(ctx, round); err != nil {
				return fmt.Errorf("%s: %w", arms[i].name, err)
			}
		}
	}
	return nil
}

// amount returns n, or a fraction in a quick run.
func (b *bench) amount(n int) int {
	if b.quick {
		return max(n/50, 4)
	}
	return n
}

// expire waits until a node has ended its unused lease sessions and closed idle files. A quick run does not wait.
func (b *bench) expire(ctx context.Context) error {
	if b.quick {
		return nil
	}
	t := time.NewTimer(6*leases.Term + leases.Term/2)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
