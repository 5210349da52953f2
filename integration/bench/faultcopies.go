package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/local"
)

// The arms for the second copy of a checkpoint.
const (
	armTwoCopies = "copies=2"
	armOneCopy   = "copies=1"
)

var faultCopiesFigure = figure{
	name:   "fault-copies",
	memory: 2 << 30,
	about: "a process on node 0 of four writes a checkpoint of 256 MiB in pieces of 1 MiB to a new file with layout=local, until it is closed: " +
		"with two copies, the second one on the next node, and with one",
	run: faultCopies,
}

func faultCopies(ctx context.Context, b *bench) (err error) {
	if b.camp, err = pitchWith(ctx, b.program, local.Config{Dir: filepath.Join(b.home, "copies")}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.camp.down()) }()
	const row = "4 checkpoint, write to close"
	side := func(name, copies string) (arm, error) {
		dir, err := b.camp.fresh(0, 0)
		if err != nil {
			return arm{}, err
		}
		for attr, value := range map[string]string{"layout": "local", "copies": copies} {
			if err := unix.Setxattr(dir, "user.bivouac."+attr, []byte(value), 0); err != nil {
				return arm{}, fmt.Errorf("%s of %s: %w", attr, dir, err)
			}
		}
		return arm{name, func(context.Context, int) error {
			n, path := b.amount(256), filepath.Join(dir, "checkpoint")
			w, err := spawn("piece-write", path, strconv.Itoa(piece), strconv.Itoa(n), "0")
			if err != nil {
				return err
			}
			used, err := together([]*child{w})
			if err == nil {
				b.take(row, "MB/s", name, float64(n*piece)/1e6/used.wall.Seconds())
			}
			return errors.Join(err, os.Remove(path))
		}}, nil
	}
	two, err := side(armTwoCopies, "2")
	if err != nil {
		return err
	}
	one, err := side(armOneCopy, "1")
	if err != nil {
		return err
	}
	if err := b.interleave(ctx, two, one); err != nil {
		return err
	}
	b.aim(row, "MB/s", ">= 0.45")
	return nil
}
