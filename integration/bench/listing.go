package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var listingFigure = figure{
	name: "listing",
	about: "find -size +0 and ls -lR over a dataset of 100,000 files in 100 directories, by one process on node 1, nothing of it in the caches of the mount; beside " +
		"the same tree on an ext4 of its own that was just mounted. That no other node is asked is checked",
	run: listing,
}

// listingAim is the target relative to the native speed.
const listingAim = ">= 0.80"

const listName = "names"

func listing(ctx context.Context, b *bench) (err error) {
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root can mount a file system: %w", syscall.EPERM)
	}
	per := b.amount(1000)
	disk := scratchDisk{image: filepath.Join(b.home, "ext4"), dir: filepath.Join(b.home, "ext4.mnt")}
	if err := disk.make(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, disk.unmount()) }()
	theirs := filepath.Join(disk.dir, listName)
	if err := os.Mkdir(theirs, 0o755); err != nil {
		return err
	}
	if err := tree(theirs, "tiny", per); err != nil {
		return err
	}
	if err := b.addDataset(ctx, theirs, listName); err != nil {
		return err
	}
	if err := b.camp.awaitView(ctx, listName); err != nil {
		return err
	}
	mount := b.camp.state.Nodes[1].Mount
	ours := filepath.Join(mount, "data", listName)
	files := findDirs * per
	for _, c := range []struct {
		args []string
		want int // output lines that describe files
	}{
		{[]string{"find", "-type", "f", "-size", "+0"}, files},
		{[]string{"ls", "-lR"}, files},
	} {
		row := c.args[0]
		once := func(arm, dir string) error {
			rate, err := listOnce(ctx, dir, c.args, files)
			b.take(row, "/s", arm, rate)
			return err
		}
		err := b.interleave(ctx,
			arm{armBivouac, func(context.Context, int) error {
				if err := forget(mount); err != nil {
					return err
				}
				return b.camp.unasked(1, func() error { return once(armBivouac, ours) })
			}},
			arm{armNative, func(context.Context, int) error {
				if err := errors.Join(disk.unmount(), disk.mount(ctx)); err != nil {
					return err
				}
				return once(armNative, theirs)
			}})
		if err != nil {
			return err
		}
		b.aim(row, "/s", listingAim)
	}
	return nil
}

// listOnce returns how many files per second are listed by a program that prints a line with the size of each: ls, or
// find with -size.
func listOnce(ctx context.Context, dir string, args []string, files int) (float64, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	began := time.Now()
	out, err := cmd.Output()
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("%q in %s: %w", args, dir, err)
	}
	n := 0
	for line := range bytes.Lines(out) {
		if bytes.HasPrefix(line, []byte("-")) || bytes.HasPrefix(line, []byte("./")) && !bytes.HasSuffix(line, []byte(":\n")) {
			n++
		}
	}
	if n != files {
		return 0, fmt.Errorf("%q in %s: %d files, not %d: %w", args, dir, n, files, syscall.EIO)
	}
	return float64(files) / took.Seconds(), nil
}

// unasked runs work on a node, and fails if the node's client called another node for it.
func (c *camp) unasked(node int, work func() error) error {
	before, err := c.counters(node)
	if err != nil {
		return err
	}
	if err := work(); err != nil {
		return err
	}
	after, err := c.counters(node)
	if err != nil {
		return err
	}
	if n := after.Client.MetaRemote - before.Client.MetaRemote; n > 0 {
		return fmt.Errorf("%d calls to other nodes, want none: %w", n, syscall.EIO)
	}
	return nil
}

// scratchDisk is an ext4 in a file, whose cached names and attributes are dropped by an unmount. The file stays in
// the page cache.
type scratchDisk struct{ image, dir string }

const scratchDiskSize = 2 << 30 // bytes, sparse

func (d scratchDisk) make(ctx context.Context) error {
	f, err := os.Create(d.image)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Truncate(scratchDiskSize), f.Close(), os.Mkdir(d.dir, 0o755)); err != nil {
		return err
	}
	mkfs := []string{"mkfs.ext4", "-q", "-F", "-N", strconv.Itoa(200_000), d.image}
	if out, err := exec.CommandContext(ctx, mkfs[0], mkfs[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%q, of the package e2fsprogs: %w: %s", mkfs, err, out)
	}
	return d.mount(ctx)
}

func (d scratchDisk) mount(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "mount", "-o", "loop,nosuid,nodev", d.image, d.dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mount of a loop device: %w: %s", err, out)
	}
	return nil
}

func (d scratchDisk) unmount() error {
	if err := unix.Unmount(d.dir, unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("unmount of %s: %w", d.dir, err)
	}
	return nil
}
