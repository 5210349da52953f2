package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/stagein"
)

var stageMembersFigure = figure{
	name:   "stage-members",
	memory: 4 << 30,
	about: "1,300,000 empty members of one tar, so that the manifest is all the work: read, built, spread to 4 nodes, ingested; " +
		"beside twice as many",
	run: func(ctx context.Context, b *bench) error { return stageMembers(ctx, b, stagein.Options{}) },
}

var stageScanFigure = figure{
	name:  "stage-scan",
	about: "the same members where one node scans the tar before any is read, since an order was asked for; beside twice as many",
	run: func(ctx context.Context, b *bench) error {
		return stageMembers(ctx, b, stagein.Options{Fill: stagein.Order{Kind: stagein.OrderSource}, Index: stagein.IndexOff})
	},
}

const (
	armMany = "1,300,000"
	armMore = "2,600,000"
)

func stageMembers(ctx context.Context, b *bench, o stagein.Options) (err error) {
	dir := filepath.Join(b.home, "members")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	side := func(name string, n int) arm {
		return arm{name, func(ctx context.Context, _ int) error {
			return b.members(ctx, name, job.Dataset{Source: filepath.Join(dir, name+".tar"), Name: "set", Options: o}, b.amount(n))
		}}
	}
	for name, n := range map[string]int{armMany: 1_300_000, armMore: 2_600_000} {
		if _, err := (archive{name + ".tar", b.amount(n), 0}).write(dir); err != nil {
			return err
		}
	}
	if b.rounds > 3 {
		was := b.rounds
		b.rounds = 3 // each takes long
		defer func() { b.rounds = was }()
	}
	err = b.interleave(ctx, side(armMany, 1_300_000), side(armMore, 2_600_000))
	b.aim("all", "s", "(<= 30 s)")
	b.aim("manifest", "bytes/entry", "(<= 120)")
	b.aim("memory of a daemon, at most", "MiB", "~ 1.0")
	return err
}

func (b *bench) members(ctx context.Context, name string, spec job.Dataset, n int) error {
	s, err := b.stageSpec(ctx, filepath.Join(b.home, "job"), spec, nil)
	if err != nil {
		return err
	}
	if s.state.Files != int64(n) {
		return fmt.Errorf("%s: %d files, not %d: %w", spec.Source, s.state.Files, n, syscall.EIO)
	}
	b.take("all", "s", name, s.sealed.Seconds())
	b.take("from the manifest's end to the seal", "s", name, (s.sealed - s.recorded).Seconds())
	b.take("manifest", "bytes/entry", name, float64(s.manifest)/float64(n))
	b.take("memory of a daemon, at most", "MiB", name, float64(s.peak)/(1<<20))
	b.take("processor, all daemons", "µs/entry", name, micros(s.cpu, n))
	return nil
}

// peak returns the peak memory, in bytes, of the daemon that used most.
func (c *camp) peak() (int64, error) {
	most := int64(0)
	for _, n := range c.state.Nodes {
		f, err := os.Open(fmt.Sprintf("/proc/%d/status", n.PID))
		if err != nil {
			return 0, err
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			var kib int64
			if v, ok := strings.CutPrefix(s.Text(), "VmHWM:"); ok {
				if _, err := fmt.Sscan(v, &kib); err != nil {
					return 0, errors.Join(err, f.Close())
				}
				most = max(most, kib<<10)
			}
		}
		_ = f.Close() // read only
	}
	return most, nil
}

// manifestSize returns the size of the manifest of the only dataset of a job in dir.
func manifestSize(dir string) (size int64, err error) {
	found, err := filepath.Glob(filepath.Join(dir, ".bivouac/node*/store/stage/*/manifest"))
	if err != nil {
		return 0, err
	}
	for _, f := range found {
		st, err := os.Stat(f)
		if err != nil {
			return 0, err
		}
		size = max(size, st.Size())
	}
	return size, nil
}
