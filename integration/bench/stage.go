package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// The arms of stage-in.
const (
	armLimit = "limit" // the time by the source's bandwidth alone
	armTar   = "tar x"
)

// siteLimits is the source of most stage-in figures. It is slow enough that two processors can serve it and do the
// work of four nodes.
var siteLimits = slowpfs.Limits{Latency: 500 * time.Microsecond, Bandwidth: 100_000_000, IOPS: 20_000}

var stageFigure = figure{
	name:   "stage",
	memory: 8 << 30,
	about: "one tar of 10,000 files (1 GiB) staged by 4 nodes from a source of 100 MB/s, 0.5 ms, 20,000 requests/s for all together; " +
		"beside the bandwidth alone, and tar x by each of 4 nodes at once",
	run: stageLimited,
}

func stageLimited(ctx context.Context, b *bench) (err error) {
	s, err := newSite(ctx, filepath.Join(b.home, b.name), siteLimits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	size, err := archive{"set.tar", b.amount(10_000), 107_374}.write(s.under)
	if err != nil {
		return err
	}
	err = b.interleave(ctx,
		arm{armBivouac, func(ctx context.Context, round int) error { return stageBivouac(ctx, b, s, size) }},
		arm{armTar, func(ctx context.Context, round int) error { return stageTar(ctx, b, s, size) }})
	b.aim("time", "s", "<= 1.15")
	b.aim("time, beside tar", "s", "<= 0.30")
	b.aim("bytes read of the source", "of its size", "<= 0.25")
	return err
}

func stageBivouac(ctx context.Context, b *bench, s *site, size int64) error {
	var took staged
	n, err := s.read(ctx, func() (err error) {
		took, err = b.stageIn(ctx, filepath.Join(b.home, "job"), s.own("set.tar"), s.wrap)
		return err
	})
	if err != nil {
		return err
	}
	b.take("time", "s", armBivouac, took.sealed.Seconds())
	b.take("time", "s", armLimit, float64(size)/float64(siteLimits.Bandwidth))
	b.take("time, beside tar", "s", armBivouac, took.sealed.Seconds())
	b.takeSource(armBivouac, n, size)
	return nil
}

func (b *bench) takeSource(arm string, n slowpfs.Counts, size int64) {
	b.take("bytes read of the source", "of its size", arm, float64(n[slowpfs.Read].Bytes)/float64(size))
	b.take("requests to the source", "", arm, float64(n.Total().Ops))
}

// stageTar has every node unpack the archive by itself.
func stageTar(ctx context.Context, b *bench, s *site, size int64) error {
	dir, err := os.MkdirTemp(b.home, "tar")
	if err != nil {
		return err
	}
	unix.Sync()
	began := time.Now()
	n, err := s.read(ctx, func() error {
		var g errgroup.Group
		for i, m := range s.mounts {
			to := filepath.Join(dir, strconv.Itoa(i))
			g.Go(func() error {
				_, err := untar(ctx, filepath.Join(m, "set.tar"), to)
				return err
			})
		}
		return g.Wait()
	})
	if err != nil {
		return err
	}
	b.take("time, beside tar", "s", armTar, time.Since(began).Seconds())
	b.takeSource(armTar, n, size)
	return os.RemoveAll(dir)
}

// untar makes dir, unpacks file there, and returns the processor time used.
func untar(ctx context.Context, file, dir string) (time.Duration, error) {
	// Laid out like the daemons' stores, so that neither pays for files that others have removed.
	if err := chunkstore.Machine.MkdirApart(dir); err != nil {
		return 0, err
	}
	c := exec.CommandContext(ctx, "tar", "-xf", file, "-C", dir)
	if out, err := c.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("tar -xf %s: %w: %s", file, err, out)
	}
	return c.ProcessState.UserTime() + c.ProcessState.SystemTime(), nil
}

// staged is the cost of a stage-in.
type staged struct {
	recorded time.Duration // until all nodes had read their parts, and the manifest was complete
	sealed   time.Duration // until all nodes could read the dataset
	cpu      time.Duration // of all daemons
	peak     int64         // peak memory in bytes of the daemon that used most
	manifest int64         // bytes
	state    cluster.Dataset
}

// stageIn stages source in a new job, whose stores are in dir.
func (b *bench) stageIn(ctx context.Context, dir, source string, wrap func(int) []string) (s staged, err error) {
	return b.stageSpec(ctx, dir, job.Dataset{Source: source, Name: "set"}, wrap)
}

func (b *bench) stageSpec(ctx context.Context, dir string, spec job.Dataset, wrap func(int) []string) (s staged, err error) {
	c, err := pitch(ctx, b.program, dir, wrap)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, c.down()) }()
	unix.Sync()
	before, _, err := c.cpu()
	if err != nil {
		return s, err
	}
	began := time.Now()
	ctl := daemon.NewCtl(c.state.Nodes[0].Sock)
	if _, err := ctl.StageIn(ctx, spec); err != nil {
		return s, err
	}
	if err := s.await(ctx, ctl, began); err != nil {
		return s, err
	}
	after, _, err := c.cpu()
	if err != nil {
		return s, err
	}
	s.cpu = after - before
	if s.peak, err = c.peak(); err != nil {
		return s, err
	}
	s.manifest, err = manifestSize(dir)
	return s, err
}

// await waits until the dataset is sealed, and records the times of its phases.
func (s *staged) await(ctx context.Context, ctl *daemon.Ctl, began time.Time) error {
	t := time.NewTicker(20 * time.Millisecond)
	defer t.Stop()
	for {
		st, err := ctl.Status(ctx)
		if err != nil {
			return err
		}
		for _, ds := range st.Datasets {
			s.state = ds.Dataset
			switch {
			case ds.Phase == cluster.Failed:
				return errors.New(ds.Error)
			case ds.Phase != cluster.Staging && s.recorded == 0:
				s.recorded = time.Since(began)
			}
			if ds.Ready {
				s.sealed = time.Since(began)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}
