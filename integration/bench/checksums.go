package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/deploy/local"
)

var sumsFigure = figure{
	name:   "checksums",
	memory: 2 << 30,
	about: "row 7: one process on node 0 writes and reads a file of 128 MiB in scratch, striped over four nodes, through the mount, and reads it with no page of it in the " +
		"kernel; with checksums of scratch and in a job without them",
	run: sums,
}

const (
	armSums   = "checksums"
	armNoSums = "without"
	sumsCalls = 4000 // at random offsets
)

func sums(ctx context.Context, b *bench) (err error) {
	var arms []arm
	for _, name := range []string{armSums, armNoSums} {
		c, e := pitchWith(ctx, b.program, local.Config{Dir: filepath.Join(b.home, name), NoChecksums: name == armNoSums})
		if e != nil {
			return e
		}
		defer func() { err = errors.Join(err, c.down()) }()
		dir, e := c.fresh(0, 0)
		if e != nil {
			return e
		}
		arms = append(arms, arm{name, func(context.Context, int) error { return b.useScratch(name, c, filepath.Join(dir, "f")) }})
	}
	return b.interleave(ctx, arms...)
}

// useScratch takes one sample of one arm.
func (b *bench) useScratch(name string, c *camp, path string) error {
	size, calls := int64(b.amount(128))<<20, b.amount(sumsCalls)
	for _, row := range []struct {
		name, unit string
		amount     float64
		cold       bool
		work       []string
	}{
		{"7 write from front to back", "MB/s", float64(size) / 1e6, false, []string{"stream-write", path, strconv.FormatInt(size, 10)}},
		{"7 read from front to back", "MB/s", float64(size) / 1e6, true, []string{"stream-read", path, "1"}},
		{"7 random 4-KiB writes", "/s", float64(calls), true, []string{"random-write", path, strconv.Itoa(calls)}},
		{"7 random 4-KiB reads", "/s", float64(calls), true, []string{"cold-random", path, strconv.Itoa(calls)}},
	} {
		if row.cold {
			if err := forget(c.state.Nodes[0].Mount); err != nil {
				return err
			}
		}
		u, err := alone(row.work...)
		if err != nil {
			return err
		}
		b.take(row.name, row.unit, name, row.amount/u.wall.Seconds())
		b.aim(row.name, row.unit, ">= 0.90")
	}
	return nil
}

// randomWrite is worker code: it writes 4 KiB pieces at n random offsets, and closes the file.
func randomWrite(path string, n int) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return errors.Join(err, unix.Close(fd))
	}
	p := make([]byte, 4096)
	return timed(func() error {
		for _, off := range randomPlaces(st.Size, n) {
			if _, err := unix.Pwrite(fd, p, off); err != nil {
				return fmt.Errorf("write at %d: %w", off, err)
			}
		}
		return unix.Close(fd)
	})
}
