package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
)

// The arms for the loss of a node.
const (
	armAfter  = "after"
	armBefore = "before"
)

// healTime passes between the loss of a node and the second read.
const healTime = 30 * time.Second

var faultLostFigure = figure{
	name:   "fault-lost",
	memory: 2 << 30,
	about: "4,000 files of 110 KB read by three nodes, no page of them in the kernel, before the fourth is killed and 30 s after; " +
		"and the bytes read of the source in between, beside the bytes that the lost node had",
	run: faultLost,
}

func faultLost(ctx context.Context, b *bench) error {
	return b.interleave(ctx, arm{armBivouac, b.loseNode})
}

// loseNode takes one sample in a new job.
func (b *bench) loseNode(ctx context.Context, round int) (err error) {
	home := filepath.Join(b.home, fmt.Sprint(b.name, round))
	s, err := newSite(ctx, home, siteLimits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	tar := archive{"set.tar", b.amount(4000), 110_000}
	if _, err := tar.write(s.under); err != nil {
		return err
	}
	if b.camp, err = pitchWith(ctx, b.program, local.Config{Dir: filepath.Join(home, "job"), Wrap: s.wrap}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.camp.down()) }()
	if err := b.addDataset(ctx, s.own(tar.name), setName); err != nil {
		return err
	}
	const lost = nodes - 1
	var bytes int64
	var paths []string // below a mount
	for i := range tar.members {
		f := sample{path: filepath.Join("data", setName, fmt.Sprintf("set/class%02d/sample%07d.jpg", i%100, i)), size: int64(tar.size)}
		if err := f.find(b.camp, filepath.Join(b.camp.state.Nodes[0].Mount, f.path)); err != nil {
			return err
		}
		paths = append(paths, f.path)
		if f.node == lost {
			bytes += f.size
		}
	}
	before, err := b.readBySurvivors(paths)
	if err != nil {
		return err
	}
	n, err := s.read(ctx, func() error {
		if err := unix.Kill(b.camp.state.Nodes[lost].PID, unix.SIGKILL); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(healTime):
			return nil
		}
	})
	if err != nil {
		return err
	}
	after, err := b.readBySurvivors(paths)
	if err != nil {
		return err
	}
	const reads, source = "3 files read by the survivors", "3 bytes read of the source in 30 s, of those lost"
	b.take(reads, "/s", armAfter, after)
	b.take(reads, "/s", armBefore, before)
	b.take(source, "", armBivouac, float64(n[slowpfs.Read].Bytes)/float64(bytes))
	b.aim(reads, "/s", ">= 0.70")
	b.want(source, "", "<= 1.05")
	return nil
}

// readBySurvivors has all nodes but the last read the files, each a part, and returns the files per second.
func (b *bench) readBySurvivors(paths []string) (float64, error) {
	var all []string
	for i := range paths {
		node := i * (nodes - 1) / len(paths)
		all = append(all, filepath.Join(b.camp.state.Nodes[node].Mount, paths[i]))
	}
	if err := forgetPages(all); err != nil {
		return 0, err
	}
	u, err := b.readAll(all, nodes-1)
	return float64(len(all)) / u.wall.Seconds(), err
}
