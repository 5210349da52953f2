package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata/leases"
)

var reopenFigure = figure{
	name: "reopen",
	about: "rows 1 to 4: a file of 256 MiB in scratch, or many of 4 KiB, written on node 0 and read on node 1 (4: on node 1, too), opened anew for each sample with its pages in the caches; " +
		"row 5: small files that the reader's mount has never seen; row 7: calls to other nodes by a program that runs a second time on node 1 in a tree that node 0 made; row 8: open for writing on node 0 " +
		"of a file whose attributes are leased to node 3, which answers or is stopped",
	run: reopen,
}

// reopenAim is the target relative to the loopback's speed.
const reopenAim = ">= 0.80"

const (
	reopenSize  = 256 << 20
	reopenFiles = 1000
	reopenTimes = 10 // reopens of a small file
)

// place is a directory for one arm, as seen by the writer and by the reader.
type place struct{ arm, made, seen, mount string }

// places makes a new directory for each arm.
func (b *bench) places(by, seen int) ([]place, error) {
	ours, err := b.camp.fresh(by, by)
	if err != nil {
		return nil, err
	}
	loop, err := b.loop.fresh()
	if err != nil {
		return nil, err
	}
	native, err := os.MkdirTemp(b.home, "native")
	return []place{
		{armBivouac, ours, b.camp.same(ours, seen), b.camp.state.Nodes[seen].Mount},
		{armLoopback, loop, loop, b.loop.dir},
		{armNative, native, native, ""},
	}, err
}

// forget drops the caches of the reader's mount.
func (p place) forget() error {
	if p.mount == "" {
		return nil
	}
	return forget(p.mount)
}

// inPlaces interleaves do over the places.
func (b *bench) inPlaces(ctx context.Context, all []place, do func(place) error) error {
	var arms []arm
	for _, p := range all {
		arms = append(arms, arm{p.arm, func(context.Context, int) error { return do(p) }})
	}
	return b.interleave(ctx, arms...)
}

// alone runs one worker.
func alone(args ...string) (usage, error) {
	c, err := spawn(args...)
	if err != nil {
		return usage{}, err
	}
	return together([]*child{c})
}

func reopen(ctx context.Context, b *bench) error {
	for _, rows := range []func(context.Context) error{b.reopenLarge, b.statNeighbours, b.reopenOwn, b.openCold, b.secondRun, b.openLeased} {
		if err := rows(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) reopenLarge(ctx context.Context) (err error) {
	all, err := b.places(0, 1)
	if err != nil {
		return err
	}
	// The loopback reads from the pages of the file below; a remote file in Bivouac has its own pages in the mount.
	// The kernel's speed with those is the limit.
	pages, err := newLoopback(filepath.Join(b.home, "paged-under"), filepath.Join(b.home, "paged"), loopPages)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pages.close()) }()
	all = append(all, place{armPages, pages.under, pages.dir, pages.dir})
	size := int64(b.amount(reopenSize>>20)) << 20
	for _, p := range all {
		if _, err := alone("stream-write", filepath.Join(p.made, "f"), strconv.FormatInt(size, 10)); err != nil {
			return err
		}
		if _, err := alone("stream-read", filepath.Join(p.seen, "f"), "1"); err != nil {
			return err
		}
	}
	const random, second = "1 random 4 KiB, pages read before", "2 second read from front to back"
	reads := b.amount(randomReads)
	err = b.inPlaces(ctx, all, func(p place) error {
		u, err := alone("random-read", "pread", filepath.Join(p.seen, "f"), strconv.Itoa(reads))
		if err != nil {
			return err
		}
		b.take(random, "/s", p.arm, float64(randomThreads*reads)/u.wall.Seconds())
		u, err = alone("stream-read", filepath.Join(p.seen, "f"), "1")
		b.take(second, "MB/s", p.arm, mbs(size, u))
		return err
	})
	b.aim(random, "/s", reopenAim)
	b.aim(second, "MB/s", reopenAim)
	return err
}

func (b *bench) statNeighbours(ctx context.Context) error {
	all, err := b.places(0, 1)
	if err != nil {
		return err
	}
	n := b.amount(reopenFiles)
	for _, p := range all {
		if _, err := load("small", []string{p.made}, n); err != nil {
			return err
		}
	}
	if err := b.expire(ctx); err != nil { // new files are not leased
		return err
	}
	const row = "3 stat of a neighbour's files, after one listing"
	err = b.inPlaces(ctx, all, func(p place) error {
		if err := p.forget(); err != nil {
			return err
		}
		if _, err := listOnce(ctx, p.seen, []string{"ls", "-lR"}, n); err != nil {
			return err
		}
		u, err := load("stat", []string{p.seen}, n)
		b.take(row, "/s", p.arm, float64(n)/u.wall.Seconds())
		return err
	})
	b.aim(row, "/s", reopenAim)
	return err
}

// fill has p's writer make n small files, and returns their paths on its reader.
func (p place) fill(n int) (paths []string, err error) {
	for i := range n {
		paths = append(paths, filepath.Join(p.seen, "p0-"+strconv.Itoa(i)))
	}
	_, err = load("small", []string{p.made}, n)
	return paths, err
}

func (b *bench) reopenOwn(ctx context.Context) error {
	const row = "4 open, read, close of own files just written"
	n := b.amount(reopenFiles)
	all, err := b.places(1, 1)
	if err != nil {
		return err
	}
	err = b.inPlaces(ctx, all, func(p place) error {
		paths, err := p.fill(n)
		if err != nil {
			return err
		}
		u, err := b.readAll(slices.Repeat(paths, reopenTimes), 1)
		b.take(row, "/s", p.arm, float64(n*reopenTimes)/u.wall.Seconds())
		for _, path := range paths {
			err = errors.Join(err, os.Remove(path))
		}
		return err
	})
	b.aim(row, "/s", reopenAim)
	return err
}

// openCold reads files whose directory and inodes are on other nodes than the reader.
func (b *bench) openCold(ctx context.Context) error {
	all, err := b.places(0, 1)
	if err != nil {
		return err
	}
	if all[0].seen, err = b.camp.away(1); err != nil {
		return err
	}
	all[0].made = b.camp.same(all[0].seen, 0)
	n := b.amount(reopenFiles)
	files := make(map[string][]string)
	for _, p := range all {
		if files[p.arm], err = p.fill(n); err != nil {
			return err
		}
	}
	const rate, calls = "5 open, read, close of a neighbour's files, cold", "5 calls to other nodes for each of them"
	err = b.inPlaces(ctx, all, func(p place) error {
		err := p.forget()
		if p.arm == armBivouac {
			err = errors.Join(err, b.expire(ctx))
		}
		if err != nil {
			return err
		}
		var u usage
		asked, err := b.camp.counted(func() (err error) {
			u, err = b.readAll(files[p.arm], 1)
			return err
		})
		b.take(rate, "/s", p.arm, float64(n)/u.wall.Seconds())
		if p.arm == armBivouac {
			b.take(calls, "", p.arm, float64(asked)/float64(n))
		}
		return err
	})
	b.aim(rate, "/s", ">= 1.0")
	b.want(calls, "", "1")
	return err
}

// secondRun counts the calls of programs that traverse a tree again that has not changed since.
func (b *bench) secondRun(ctx context.Context) error {
	for _, program := range []string{"git", "make"} {
		if _, err := exec.LookPath(program); err != nil {
			b.note("row 7 lacks %s: %v", program, err)
			return nil
		}
	}
	made, err := b.camp.fresh(0, 0)
	if err != nil {
		return err
	}
	if err := tree(made, "tiny", max(b.amount(reopenFiles)/findDirs, 1)); err != nil {
		return err
	}
	const rules = "all: out\nout: $(wildcard dir*/*)\n\ttouch out\n"
	if err := os.WriteFile(filepath.Join(made, "Makefile"), []byte(rules), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"make"}, {"git", "init", "-q"}, {"git", "add", "."}, {"git", "-c", "user.name=bench", "-c", "user.email=bench", "commit", "-qm", "all"}} {
		if err := quietly(ctx, made, args...); err != nil {
			return err
		}
	}
	if err := b.expire(ctx); err != nil {
		return err
	}
	seen := b.camp.same(made, 1)
	for _, args := range [][]string{{"ls", "-lR"}, {"make"}, {"git", "status"}} {
		row := fmt.Sprintf("7 calls to other nodes, second %s", filepath.Join(args...))
		err := b.interleave(ctx, arm{armBivouac, func(ctx context.Context, _ int) error {
			if err := quietly(ctx, seen, args...); err != nil {
				return err
			}
			n, err := b.camp.counted(func() error { return quietly(ctx, seen, args...) })
			b.take(row, "", armBivouac, float64(n))
			return err
		}})
		if err != nil {
			return err
		}
		b.want(row, "", "0")
	}
	return nil
}

func quietly(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%q: %w: %s", args, err, out)
	}
	return nil
}

// background lists the calls between daemons that no operation waits for.
var background = []string{"report", "space", "closed", "propose", "training", "plan-state", "shard-report", "status", "renew-lease"}

// asked returns how many calls of other daemons the daemons have answered.
func (c *camp) asked() (n int64, err error) {
	for i := range nodes {
		k, err := c.counters(i)
		if err != nil {
			return 0, err
		}
		for op, calls := range k.RPC.Calls {
			if !slices.Contains(background, op) {
				n += calls
			}
		}
	}
	return n, nil
}

// counted returns how many such calls the daemons answer during work.
func (c *camp) counted(work func() error) (int64, error) {
	before, err := c.asked()
	if err != nil {
		return 0, err
	}
	if err := work(); err != nil {
		return 0, err
	}
	after, err := c.asked()
	return after - before, err
}

// openLeased opens a file for writing on node 0 whose attributes are leased to another node, which is not its home,
// does not store its data, and is not in the control group.
func (b *bench) openLeased(ctx context.Context) error {
	const holder = nodes - 1
	const calls, answers, stopped = "8 calls more, leased to a node that answers", "8 open for writing", "8 the same, holder stopped"
	dir, err := b.camp.away(holder)
	if err != nil {
		return err
	}
	made := b.camp.same(dir, 0)
	if err := unix.Setxattr(made, "user.bivouac.layout", []byte("local"), 0); err != nil {
		return fmt.Errorf("layout of %s: %w", made, err)
	}
	// once returns the time of the open, with and without a lease of the holder.
	once := func(leased, stop bool) (took time.Duration, n int64, err error) {
		if err := os.WriteFile(filepath.Join(made, "f"), payload, 0o644); err != nil {
			return 0, 0, err
		}
		if err := b.expire(ctx); err != nil { // recent writes are not leased, and an idle machine is slower
			return 0, 0, err
		}
		if leased {
			if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
				return 0, 0, err
			}
		}
		open := func() error {
			began := time.Now()
			f, err := os.OpenFile(filepath.Join(made, "f"), os.O_WRONLY|os.O_TRUNC, 0)
			took = time.Since(began)
			if err != nil {
				return err
			}
			return f.Close()
		}
		if !stop {
			n, err = b.camp.counted(open)
			return took, n, err
		}
		pid := b.camp.state.Nodes[holder].PID
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			return 0, 0, err
		}
		return took, 0, errors.Join(open(), unix.Kill(pid, unix.SIGCONT))
	}
	err = b.interleave(ctx, arm{armBivouac, func(context.Context, int) error {
		free, without, err := once(false, false)
		if err != nil {
			return err
		}
		held, with, err := once(true, false)
		if err != nil {
			return err
		}
		b.take(calls, "", armBivouac, float64(with-without))
		b.take(answers+", not leased", "ms", armBivouac, free.Seconds()*1e3)
		b.take(answers+", leased", "ms", armBivouac, held.Seconds()*1e3)
		held, _, err = once(true, true)
		b.take(stopped, "s", armBivouac, held.Seconds())
		return err
	}})
	b.want(calls, "", "<= 2")
	b.want(stopped, "s", fmt.Sprintf("<= %.1f", leases.Term.Seconds()+0.1))
	return err
}
