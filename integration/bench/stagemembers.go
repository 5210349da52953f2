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
)

var stageMembersFigure = figure{
	name: "stage-members",
	about: "1,300,000 empty members of one tar, so that the manifest is all the work: read, built, spread to 4 nodes, ingested; " +
		"beside a tenth of them",
	run: stageMembers,
}

const (
	armMany = "1,300,000"
	armFew  = "130,000"
)

func stageMembers(ctx context.Context, b *bench) (err error) {
	dir := filepath.Join(b.home, "members")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	side := func(name string, n int) arm {
		return arm{name, func(ctx context.Context, _ int) error {
			return b.members(ctx, name, filepath.Join(dir, name+".tar"), b.amount(n))
		}}
	}
	for name, n := range map[string]int{armMany: 1_300_000, armFew: 130_000} {
		if _, err := (archive{name + ".tar", b.amount(n), 0}).write(dir); err != nil {
			return err
		}
	}
	if b.rounds > 3 {
		was := b.rounds
		b.rounds = 3 // each is long
		defer func() { b.rounds = was }()
	}
	err = b.interleave(ctx, side(armMany, 1_300_000), side(armFew, 130_000))
	b.aim("all", "s", "(<= 30 s)")
	b.aim("manifest", "bytes/entry", "(<= 120)")
	b.aim("memory of a daemon, at most", "MiB", "(flat)")
	return err
}

func (b *bench) members(ctx context.Context, name, file string, n int) error {
	s, err := b.stageIn(ctx, filepath.Join(b.home, "job"), file, nil)
	if err != nil {
		return err
	}
	if s.state.Files != int64(n) {
		return fmt.Errorf("%s: %d files, not %d: %w", file, s.state.Files, n, syscall.EIO)
	}
	b.take("all", "s", name, s.sealed.Seconds())
	b.take("from the manifest's end to the seal", "s", name, (s.sealed - s.recorded).Seconds())
	b.take("manifest", "bytes/entry", name, float64(s.manifest)/float64(n))
	b.take("memory of a daemon, at most", "MiB", name, float64(s.peak)/(1<<20))
	b.take("processor, all daemons", "µs/entry", name, micros(s.cpu, n))
	return nil
}

// peak is the memory that the daemon that had most has had, in bytes.
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

// manifestSize is the bytes of the manifest of the only dataset of a job in dir.
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
