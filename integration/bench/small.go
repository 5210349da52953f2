package main

import (
	"context"
)

var smallFigure = figure{
	name:  "small",
	about: "files of 4 KiB made, written and closed by one process on node 1, in a directory of its own or in one that another node keeps",
	run:   small,
}

func small(ctx context.Context, b *bench) error {
	n := b.amount(namesFiles)
	run := func(row, arm string, where func() (string, error)) error {
		dir, err := where()
		if err != nil {
			return err
		}
		if err := b.expire(ctx); err != nil {
			return err
		}
		u, err := load("small", []string{dir}, n)
		if err != nil {
			return err
		}
		b.take(row, "/s", arm, float64(n)/u.wall.Seconds())
		return nil
	}
	return b.interleave(ctx,
		arm{armBivouac, func(context.Context, int) error {
			return run("own directory", armBivouac, func() (string, error) { return b.camp.fresh(1, 1) })
		}},
		arm{armLoopback, func(context.Context, int) error { return run("own directory", armLoopback, b.loop.fresh) }},
		arm{armBivouac, func(context.Context, int) error {
			return run("directory of another node", armBivouac, func() (string, error) { return b.camp.away(1) })
		}},
		arm{armLoopback, func(context.Context, int) error {
			return run("directory of another node", armLoopback, b.loop.fresh)
		}})
}
