package main

import (
	"context"
	"fmt"
)

var namesFigure = figure{
	name:  "names",
	about: "empty files made, looked at with expired caches, and removed; a process on each node, in a directory each or in one that another node keeps",
	run:   names,
}

// createAim is the target for mounted creates relative to the loopback's, although they include a call to another
// node.
const createAim = ">= 0.6"

// namesFiles is small, because a create of the loopback gets slower with every name in its directory.
const namesFiles = 800

func names(ctx context.Context, b *bench) error {
	for _, procs := range []int{1, 2, 4} {
		for _, shared := range []bool{false, true} {
			c := namesCase{b: b, procs: procs, shared: shared}
			err := b.interleave(ctx,
				arm{armBivouac, func(ctx context.Context, _ int) error { return c.run(ctx, armBivouac, c.camp) }},
				arm{armLoopback, func(ctx context.Context, _ int) error { return c.run(ctx, armLoopback, c.loop) }})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

type namesCase struct {
	b      *bench
	procs  int
	shared bool
}

// camp returns the directory of each process, as seen by its node. The first process runs on node 1.
func (c namesCase) camp() ([]string, error) {
	var dirs []string
	var first string
	for i := range c.procs {
		node := (i + 1) % nodes
		var d string
		var err error
		switch {
		case !c.shared:
			d, err = c.b.camp.fresh(node, node)
		case i == 0:
			d, err = c.b.camp.away(node)
			first = d
		default:
			d = c.b.camp.same(first, node)
		}
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, d)
	}
	return dirs, nil
}

func (c namesCase) loop() ([]string, error) {
	var dirs []string
	for i := range c.procs {
		if c.shared && i > 0 {
			dirs = append(dirs, dirs[0])
			continue
		}
		d, err := c.b.loop.fresh()
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, d)
	}
	return dirs, nil
}

func (c namesCase) run(ctx context.Context, arm string, where func() ([]string, error)) error {
	dirs, err := where()
	if err != nil {
		return err
	}
	n := c.b.amount(namesFiles) / c.procs
	for _, op := range []string{"create", "stat", "unlink"} {
		if err := c.b.expire(ctx); err != nil {
			return err
		}
		u, err := load(op, dirs, n)
		if err != nil {
			return err
		}
		row := fmt.Sprintf("%s, %d %s", op, c.procs, map[bool]string{false: "own", true: "shared"}[c.shared])
		c.b.take(row, "/s", arm, float64(n*c.procs)/u.wall.Seconds())
		if op == "create" {
			c.b.aim(row, "/s", createAim)
		}
	}
	return nil
}
