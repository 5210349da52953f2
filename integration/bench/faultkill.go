package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	keeper "github.com/bivouacfs/bivouac/deploy/pitch"
)

const (
	killFiles   = 400
	killHandles = 100 // open when the daemon is killed
	killReaders = 4
	killJob     = "4711"
	killTime    = 60 * time.Second // limit for the daemon to return
)

var faultKillFigure = figure{
	name: "fault-kill",
	about: "the daemon of a job of one node, under its keeper, is killed with SIGKILL while 4 readers open, read and close files of 64 KiB in scratch " +
		"and 100 files are open, half of them for writing; the longest time between two successful reads of a reader, the calls that failed, and the open files that can still be read and written",
	run: faultKill,
}

func faultKill(ctx context.Context, b *bench) error {
	if os.Geteuid() != 0 {
		return errors.New("a keeper needs root: run this as root")
	}
	return b.interleave(ctx, arm{armBivouac, b.killDaemon})
}

// kept is a one-node job with a keeper, started as by Slurm's prolog.
type kept struct {
	program, dir, config string
}

// newKept starts the job.
func (b *bench) newKept(ctx context.Context, dir string) (*kept, error) {
	k := &kept{dir: dir, config: filepath.Join(dir, "bivouac.yaml")}
	var err error
	if k.program, err = filepath.Abs(b.program); err != nil {
		return nil, err
	}
	for _, d := range []string{dir, filepath.Join(dir, "store")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(b.home, 0o711); err != nil { // the daemon runs as a user
		return nil, err
	}
	site := fmt.Sprintf("store: [%[1]s/store]\nrun: %[1]s/run\nmount: %[1]s/mnt\nlog: %[1]s/log\n", dir)
	if err := os.WriteFile(k.config, []byte(site), 0o644); err != nil {
		return nil, err
	}
	if err := k.script(ctx, "prolog"); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(k.mount(), "scratch")); err != nil {
		return nil, errors.Join(fmt.Errorf("the job did not start: %w", err), k.script(ctx, "epilog"))
	}
	return k, nil
}

func (k *kept) mount() string { return filepath.Join(k.dir, "mnt", killJob) }

// script runs the program as Slurm does before and after a job.
func (k *kept) script(ctx context.Context, name string) error {
	spec, err := (&keeper.Spec{V: keeper.SpecVersion}).Encode()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, k.program, name, "--config", k.config)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "SPANK_BIVOUAC_SPEC="+spec, "SLURM_JOB_ID="+killJob, "SLURM_JOB_UID=65534", "SLURM_JOB_GID=65534",
		"SLURM_JOB_NODELIST=node1", "SLURMD_NODENAME=node1")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// kill kills the daemon.
func (k *kept) kill() error {
	b, err := os.ReadFile(filepath.Join(k.dir, "run", killJob, "daemon.pid"))
	if err != nil {
		return err
	}
	var pid int
	if _, err := fmt.Sscan(string(b), &pid); err != nil {
		return fmt.Errorf("daemon.pid: %w", err)
	}
	return unix.Kill(pid, unix.SIGKILL)
}

// killDaemon takes one sample in a new job.
func (b *bench) killDaemon(ctx context.Context, round int) (err error) {
	k, err := b.newKept(ctx, filepath.Join(b.home, fmt.Sprint("k", round)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.script(context.WithoutCancel(ctx), "epilog")) }()
	paths, open, err := k.fill()
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range open {
			_ = f.Close() // read only
		}
	}()
	r := startReading(paths)
	if err := errors.Join(r.await(ctx, killFiles), k.kill()); err != nil {
		return errors.Join(err, r.stop())
	}
	if err := errors.Join(r.await(ctx, killFiles), r.stop()); err != nil {
		return err
	}
	survived := 0
	for i, f := range open {
		if goesOn(f, i%2 == 1) {
			survived++
		}
	}
	const stall, handles = "2 longest stall of a reader", "2 open files that go on, of 100"
	b.take(stall, "s", armBivouac, time.Duration(r.stall.Load()).Seconds())
	b.want(stall, "s", "<= 2")
	b.take(handles, "", armBivouac, float64(survived))
	b.want(handles, "", "100")
	b.take("2 calls that failed meanwhile", "", armBivouac, float64(r.failed.Load()))
	return nil
}

// goesOn reports whether an open file can still be read, and written.
func goesOn(f *os.File, write bool) bool {
	b, err := io.ReadAll(f)
	if err == nil && write {
		_, err = f.WriteAt(b[:1], 0)
		err = errors.Join(err, f.Sync())
	}
	return err == nil && len(b) == 64<<10
}

// fill writes the files, and opens some, every other one also for writing.
func (k *kept) fill() (paths []string, open []*os.File, err error) {
	data := make([]byte, 64<<10)
	for i := range killFiles {
		p := filepath.Join(k.mount(), "scratch", fmt.Sprint(i))
		if err := os.WriteFile(p, data, 0o644); err != nil {
			return nil, nil, err
		}
		paths = append(paths, p)
		if i < killHandles {
			f, err := os.OpenFile(p, []int{os.O_RDONLY, os.O_RDWR}[i%2], 0)
			if err != nil {
				return nil, nil, err
			}
			open = append(open, f)
		}
	}
	return paths, open, nil
}

// reading runs goroutines that read files until it is stopped.
type reading struct {
	end          chan struct{}
	wg           sync.WaitGroup
	good, failed atomic.Int64
	stall        atomic.Int64 // the longest read, nanoseconds
	bad          atomic.Int64 // reads of wrong bytes
}

func startReading(paths []string) *reading {
	r := &reading{end: make(chan struct{})}
	for range killReaders {
		r.wg.Go(func() {
			last := time.Now()
			for {
				select {
				case <-r.end:
					return
				default:
				}
				b, err := os.ReadFile(paths[rand.IntN(len(paths))])
				if err != nil {
					r.failed.Add(1)
					time.Sleep(time.Millisecond) // a program would not retry more often
					continue
				}
				if len(b) != 64<<10 {
					r.bad.Add(1)
				}
				now := time.Now()
				if d := int64(now.Sub(last)); d > r.stall.Load() {
					r.stall.Store(d)
				}
				last = now
				r.good.Add(1)
			}
		})
	}
	return r
}

// await waits for n more reads.
func (r *reading) await(ctx context.Context, n int64) error {
	ctx, cancel := context.WithTimeout(ctx, killTime)
	defer cancel()
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for want := r.good.Load() + n; r.good.Load() < want; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the readers did not go on: %w", ctx.Err())
		case <-t.C:
		}
	}
	return nil
}

func (r *reading) stop() error {
	close(r.end)
	r.wg.Wait()
	if n := r.bad.Load(); n > 0 {
		return fmt.Errorf("%d files were read short", n)
	}
	return nil
}
