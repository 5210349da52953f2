package main

import (
	"context"
)

var localFigure = figure{
	name: "local",
	about: "open, read and close of the small files of a dataset that are whole on node 0, by two processes there, through the kernel view; beside the same files " +
		"read from the disk's directory (native), through the main mount below the view, and through a raw FUSE loopback with the settings of a cover: the kernel opens by " +
		"itself, and reads through its page cache. Cold is that the mount has no names and inodes; the view's image has them still",
	run: readLocal,
}

const (
	armNative = "native"
	armRaw    = "raw FUSE"
	armMain   = "main mount"
)

// readLocal reads with cold and warm mount caches; the disk's cache is warm.
func readLocal(ctx context.Context, b *bench) error {
	d, err := b.staged(ctx)
	if err != nil {
		return err
	}
	files := d.on(0)
	objects := b.camp.objects(files)
	raw, err := newRawLoopback(b, objects)
	if err != nil {
		return err
	}
	defer raw.close()
	node := b.camp.state.Nodes[0]
	type side struct {
		arm, mount string
		paths      []string
		pids       []int
	}
	sides := []side{
		{armBivouac, node.Mount, through(node.Mount, files), []int{node.PID}},
		{armNative, "", objects, nil},
		{armRaw, raw.dir, raw.paths(), []int{raw.cmd.Process.Pid}},
	}
	if d.below != "" {
		sides = append(sides, side{armMain, d.below, d.allBelow(files), []int{node.PID}})
	}
	var arms []arm
	for _, s := range sides {
		arms = append(arms, arm{s.arm, func(context.Context, int) error {
			for _, heat := range []string{"cold", "hot"} {
				if heat == "cold" && s.mount != "" {
					if err := forget(s.mount); err != nil {
						return err
					}
				}
				c, err := charged(s.pids, func() (usage, error) { return b.readAll(s.paths, 2) })
				if err != nil {
					return err
				}
				b.take("files, caches of the mount "+heat, "/s", s.arm, c.rate(len(files)))
				b.take("processor time of a file, "+heat, "us", s.arm, c.micros(len(files)))
				if s.arm != armNative {
					b.take("the same beside raw FUSE, "+heat, "us", s.arm, c.micros(len(files)))
				}
			}
			return nil
		}})
	}
	if _, err := b.readAll(objects, 2); err != nil { // the disk's cache is warm from here on
		return err
	}
	if err := b.interleave(ctx, arms...); err != nil {
		return err
	}
	b.aim("files, caches of the mount cold", "/s", ">= 0.40")
	b.aim("files, caches of the mount hot", "/s", ">= 0.55")
	b.aim("the same beside raw FUSE, cold", "us", "<= 1.1")
	b.aim("the same beside raw FUSE, hot", "us", "<= 1.1")
	return nil
}
