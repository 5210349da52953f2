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

	"github.com/bivouacfs/bivouac/deploy/mounts"
)

var findFigure = figure{
	name:  "find",
	about: "find over a tree of 100,000 files in 100 directories, made by node 0 and read by node 1; nothing of it in the caches of either mount",
	run:   find,
}

// findAim is the target relative to the loopback's speed.
const findAim = ">= 1.0"

const findDirs = 100

func find(ctx context.Context, b *bench) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root can empty the caches of a mount: %w", syscall.EPERM)
	}
	per := b.amount(1000)
	made, err := b.camp.fresh(0, 0)
	if err != nil {
		return err
	}
	ours := b.camp.same(made, 1)
	theirs, err := b.loop.fresh()
	if err != nil {
		return err
	}
	for _, top := range []string{made, theirs} {
		if err := tree(top, "create", per); err != nil {
			return err
		}
	}
	count := 1 + findDirs + findDirs*per
	for _, c := range []struct {
		row  string
		args []string
	}{
		{"names", nil},
		{"names and attributes", []string{"-size", "-1000000G"}},
	} {
		side := func(arm, mount, dir string) func(context.Context, int) error {
			return func(ctx context.Context, _ int) error {
				rate, err := findOnce(ctx, mount, dir, count, c.args)
				b.take(c.row, "/s", arm, rate)
				return err
			}
		}
		err := b.interleave(ctx,
			arm{armBivouac, side(armBivouac, b.camp.state.Nodes[1].Mount, ours)},
			arm{armLoopback, side(armLoopback, b.loop.dir, theirs)})
		if err != nil {
			return err
		}
		b.aim(c.row, "/s", findAim)
	}
	return nil
}

// tree makes findDirs directories with per files each, by running op in workers.
func tree(top, op string, per int) error {
	for i := range findDirs {
		d := filepath.Join(top, "dir"+strconv.Itoa(i))
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
		if _, err := load(op, []string{d}, per); err != nil {
			return err
		}
	}
	return nil
}

// findOnce returns how many entries per second a find reports.
func findOnce(ctx context.Context, mount, dir string, want int, args []string) (float64, error) {
	if err := forget(mount); err != nil {
		return 0, err
	}
	cmd := exec.CommandContext(ctx, "find", append([]string{dir}, args...)...)
	began := time.Now()
	out, err := cmd.Output()
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("find %s: %w", dir, err)
	}
	if n := bytes.Count(out, []byte("\n")); n != want {
		return 0, fmt.Errorf("find %s: %d entries, not %d: %w", dir, n, want, syscall.EIO)
	}
	return float64(want) / took.Seconds(), nil
}

// forget drops the kernel's cached names and inodes of a mount and the mounts below it, by a remount.
func forget(mount string) error {
	under, err := mounts.Under(mount)
	if err != nil {
		return err
	}
	for _, m := range under {
		flags := uintptr(unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV)
		if m.Path != mount {
			flags |= unix.MS_RDONLY
		}
		if err := unix.Mount("", m.Path, "", flags, ""); err != nil {
			return fmt.Errorf("remount of %s: %w", m.Path, err)
		}
	}
	return nil
}

// forgetPages makes the kernel drop the cached pages of files: a remount of a kernel view keeps the pages below it.
func forgetPages(paths []string) error {
	for _, p := range paths {
		fd, err := unix.Open(p, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		err = errors.Join(unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED), unix.Close(fd))
		if err != nil {
			return fmt.Errorf("pages of %s: %w", p, err)
		}
	}
	return nil
}
