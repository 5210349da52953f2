package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"time"
)

var serverFigure = figure{
	name:  "server",
	about: "processor time for one operation: of the store that keeps the directory (direct calls) and of its whole daemon (calls of node 1), beside bare Pebble with the same records; and of all daemons, beside the loopback",
	run:   server,
}

// serverAim is the target for the daemon's cost of a create relative to its bare records.
const serverAim = "<= 3"

func server(ctx context.Context, b *bench) error {
	for _, part := range []string{"store, ", "home, ", "all, "} {
		for _, op := range serverOps {
			b.table.row(part+op, "µs")
		}
	}
	return b.interleave(ctx,
		arm{armBivouac, func(ctx context.Context, _ int) error { return serverCamp(ctx, b) }},
		arm{armLoopback, func(ctx context.Context, _ int) error { return serverLoop(ctx, b) }},
		arm{armPebble, func(_ context.Context, round int) error { return serverPebble(b, round) }})
}

var serverOps = []string{"create", "stat", "unlink"}

func serverCamp(ctx context.Context, b *bench) error {
	dir, err := b.camp.away(1)
	if err != nil {
		return err
	}
	keeper, err := home(dir)
	if err != nil {
		return err
	}
	n := b.amount(2000)
	for _, op := range serverOps {
		if err := b.expire(ctx); err != nil {
			return err
		}
		all0, each0, err := b.camp.cpu()
		if err != nil {
			return err
		}
		if _, err := load(op, []string{dir}, n); err != nil {
			return err
		}
		all, each, err := b.camp.cpu()
		if err != nil {
			return err
		}
		b.take("home, "+op, "µs", armBivouac, micros(each[keeper]-each0[keeper], n))
		b.take("all, "+op, "µs", armBivouac, micros(all-all0, n))
	}
	b.aim("home, create", "µs", serverAim)
	return nil
}

func serverLoop(ctx context.Context, b *bench) error {
	dir, err := b.loop.fresh()
	if err != nil {
		return err
	}
	n := b.amount(2000)
	for _, op := range serverOps {
		if err := b.expire(ctx); err != nil {
			return err
		}
		before, err := processTime(b.loop.cmd.Process.Pid)
		if err != nil {
			return err
		}
		if _, err := load(op, []string{dir}, n); err != nil {
			return err
		}
		after, err := processTime(b.loop.cmd.Process.Pid)
		if err != nil {
			return err
		}
		b.take("all, "+op, "µs", armLoopback, micros(after-before, n))
	}
	return nil
}

func serverPebble(b *bench, round int) error {
	n := b.amount(2000)
	for _, op := range serverOps {
		bare, err := b.direct("pebble-"+op, round, n)
		if err != nil {
			return err
		}
		ours, err := b.direct("store-"+op, round, n)
		if err != nil {
			return err
		}
		b.take("store, "+op, "µs", armBivouac, ours)
		b.take("store, "+op, "µs", armPebble, bare)
		b.take("home, "+op, "µs", armPebble, bare)
	}
	b.aim("store, create", "µs", serverAim)
	return nil
}

// direct returns the processor time of a worker that needs no mount, in µs for each of n operations.
func (b *bench) direct(work string, round, n int) (float64, error) {
	c, err := spawn(work, filepath.Join(b.home, fmt.Sprintf("%s-%d", work, round)), strconv.Itoa(n))
	if err != nil {
		return 0, err
	}
	u, err := together([]*child{c})
	return micros(u.cpu, n), err
}

func micros(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / 1e3 / float64(n) }
