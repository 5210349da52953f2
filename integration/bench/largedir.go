package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
)

var largeDirFigure = figure{
	name: "largedir",
	about: "stat, unlink and create of 800 entries of a directory of 10,000 and of 100,000 entries, by one process on node 1, in a directory that another node " +
		"keeps; beside one of 4,000, and beside the loopback with as many",
	run: largeDir,
}

const (
	largeDirAim    = ">= 0.90"
	largeDirFew    = 4000
	largeDirRounds = 5
	largeDirUsed   = largeDirFew / largeDirRounds // per round
	armFew         = "4,000"
)

func largeDir(ctx context.Context, b *bench) error {
	for _, size := range []int{10_000, 100_000} {
		large, err := b.crowded(size)
		if err != nil {
			return err
		}
		few, err := b.crowded(largeDirFew)
		if err != nil {
			return err
		}
		loop, err := b.loop.fresh()
		if err != nil {
			return err
		}
		// The loopback's own creates get slower with every name; files created below it are not in its caches.
		if err := b.fill(filepath.Join(b.loop.under, filepath.Base(loop)), size); err != nil {
			return err
		}
		if err := b.expire(ctx); err != nil { // the directory may be split meanwhile
			return err
		}
		var arms []arm
		for _, s := range []struct{ arm, dir string }{{armBivouac, large}, {armFew, few}, {armLoopback, loop}} {
			arms = append(arms, arm{s.arm, func(ctx context.Context, round int) error { return b.useSome(s.arm, s.dir, size, round) }})
		}
		if err := b.interleave(ctx, arms...); err != nil {
			return err
		}
	}
	return nil
}

// crowded makes a directory with this many entries, with one name prefix per round.
func (b *bench) crowded(entries int) (string, error) {
	dir, err := b.camp.away(1)
	if err != nil {
		return "", err
	}
	return dir, b.fill(dir, entries)
}

func (b *bench) fill(dir string, entries int) error {
	_, err := load("create", slices.Repeat([]string{dir}, largeDirRounds), b.amount(entries)/largeDirRounds)
	return err
}

// useSome stats the entries of a round, removes them, and makes them again.
func (b *bench) useSome(arm, dir string, size, round int) error {
	n := b.amount(largeDirUsed)
	for _, op := range []string{"stat", "unlink", "create"} {
		u, err := alone(op, dir, fmt.Sprintf("p%d-", round%largeDirRounds), strconv.Itoa(n))
		if err != nil {
			return err
		}
		row := fmt.Sprintf("9 %s, directory of %d", op, size)
		b.take(row, "/s", arm, float64(n)/u.wall.Seconds())
		b.aim(row, "/s", largeDirAim)
	}
	return nil
}
