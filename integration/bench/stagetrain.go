package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/deploy/local"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// The arms of training.
const (
	armOverlap = "overlap"
	armAll     = "stage all, then read"
	armDirect  = "source"
)

// sampleSize is the bytes of a sample.
const sampleSize = 107_374

// trainSet is a set of files, and how four ranks read it: each epoch has all files in a different order, of which
// rank r reads every fourth from r on, in sequence, and takes think for each, like the simplest training loop.
type trainSet struct {
	n     int
	think time.Duration
}

func (set trainSet) path(i int) string { return fmt.Sprintf("class%02d/sample%07d.jpg", i%100, i) }

func (set trainSet) bytes() int64 { return int64(set.n) * sampleSize }

// write makes the set as a tree.
func (set trainSet) write(dir string) error {
	data := make([]byte, sampleSize)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // never fails
	for i := range set.n {
		p := filepath.Join(dir, set.path(i))
		if i < 100 {
			if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
				return err
			}
		}
		binary.LittleEndian.PutUint64(data, uint64(i))
		if err := os.WriteFile(p, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// order returns the order of an epoch.
func (set trainSet) order(epoch int) []int {
	return rand.New(rand.NewPCG(7, uint64(epoch))).Perm(set.n)
}

// list writes the order of an epoch as a list of paths.
func (set trainSet) list(file string, epoch int) error {
	var b strings.Builder
	for _, i := range set.order(epoch) {
		fmt.Fprintln(&b, set.path(i))
	}
	return os.WriteFile(file, []byte(b.String()), 0o644)
}

// train has a rank on each node read the first n samples of an epoch.
func (set trainSet) train(ctx context.Context, dirs []string, epoch, n int) error {
	order := set.order(epoch)[:n]
	g, ctx := errgroup.WithContext(ctx)
	for r, dir := range dirs {
		g.Go(func() error {
			buf := make([]byte, sampleSize+1)
			left := time.Duration(0) // remaining think time
			for k := r; k < len(order); k += len(dirs) {
				if err := set.sample(dir, order[k], buf); err != nil {
					return err
				}
				read := time.Now()
				left += set.think
				if err := pause(ctx, left); err != nil {
					return err
				}
				left -= time.Since(read)
			}
			return nil
		})
	}
	return g.Wait()
}

// sample reads a sample, and checks its content.
func (set trainSet) sample(dir string, i int, buf []byte) error {
	f, err := os.Open(filepath.Join(dir, set.path(i)))
	if err != nil {
		return err
	}
	n, err := io.ReadFull(f, buf)
	if e := f.Close(); e != nil || !errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: %w", f.Name(), errors.Join(err, e, syscall.EIO))
	}
	if n != sampleSize || binary.LittleEndian.Uint64(buf) != uint64(i) {
		return fmt.Errorf("%s: %d bytes that are not of sample %d: %w", f.Name(), n, i, syscall.EIO)
	}
	return nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// course is a job that trains with a set from a site.
type course struct {
	b    *bench
	s    *site
	set  trainSet
	spec job.Dataset
	job  local.Config
}

// run pitches the job, stages, and calls do once ready accepts the dataset's status. The time is from the request to
// the end of do.
func (c course) run(ctx context.Context, ready func(daemon.DatasetStatus) bool, do func(ctx context.Context, dirs []string) error) (took time.Duration, err error) {
	c.job.Dir, c.job.Wrap = filepath.Join(c.b.home, "job"), c.s.wrap
	m, err := pitchWith(ctx, c.b.program, c.job)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.down()) }()
	unix.Sync()
	var dirs []string
	for _, n := range m.state.Nodes {
		dirs = append(dirs, filepath.Join(n.Mount, "data", c.spec.Name))
	}
	began := time.Now()
	ctl := daemon.NewCtl(m.state.Nodes[0].Sock)
	if _, err := ctl.StageIn(ctx, c.spec); err != nil {
		return 0, err
	}
	for _, n := range m.state.Nodes {
		if err := until(ctx, daemon.NewCtl(n.Sock), ready); err != nil {
			return 0, err
		}
	}
	err = do(ctx, dirs)
	return time.Since(began), err
}

// until waits until the only dataset is ready.
func until(ctx context.Context, ctl *daemon.Ctl, ready func(daemon.DatasetStatus) bool) error {
	for {
		st, err := ctl.Status(ctx)
		if err != nil {
			return err
		}
		for _, ds := range st.Datasets {
			switch {
			case ds.Phase == cluster.Failed:
				return errors.New(ds.Error)
			case ready(ds):
				return nil
			}
		}
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

func readable(ds daemon.DatasetStatus) bool { return ds.Readable }
func sealed(ds daemon.DatasetStatus) bool   { return ds.Ready }

// ordered returns a set as a tree behind a site, staged in the order of the first epoch.
func (b *bench) ordered(s *site, set trainSet) (job.Dataset, error) {
	list := filepath.Join(b.home, "order")
	spec := job.Dataset{Source: s.own("tree"), Name: "set"}
	spec.Options.Fill = stagein.Order{Kind: stagein.OrderList, List: list}
	return spec, errors.Join(set.write(filepath.Join(s.under, "tree")), set.list(list, 0))
}

// trees returns the paths of the set at the source, one per node.
func (s *site) trees() (dirs []string) {
	for _, m := range s.mounts {
		dirs = append(dirs, filepath.Join(m, "tree"))
	}
	return dirs
}

// epochLimits is a source that gives a single reader on each node about its full bandwidth: a sample is three
// requests and a quarter of the rate. Everything is in slow motion, a quarter as fast as in the other figures: four
// nodes, four readers and the source share a machine, and with two processors a faster source would wait for these,
// as on no node of a cluster.
var epochLimits = slowpfs.Limits{Latency: 4 * time.Millisecond, Bandwidth: siteLimits.Bandwidth / 4, IOPS: siteLimits.IOPS / 4}

var stageEpochFigure = figure{
	name:   "stage-epoch",
	memory: 5 << 30,
	about: "the first epoch of 10,000 files (1 GiB), one reader on each of 4 nodes that thinks for as long as the source's bandwidth needs for a sample; " +
		"while they are staged in the order of the epoch, beside staging all before, and beside reading the source itself (25 MB/s, 4 ms, 5,000 requests/s); " +
		"if processors are busy all the time, or stolen by the machine's host, it is those that are measured",
	run: stageEpoch,
}

// busy runs do, and records the share of the time in which the machine's processors were busy.
func (b *bench) busy(arm string, do func() error) error {
	before, err := procStat()
	if err == nil {
		err = do()
	}
	if err != nil {
		return err
	}
	after, err := procStat()
	if all := after.all - before.all; err == nil && all > 0 {
		b.take("processors busy", "%", arm, 100*(1-(after.idle-before.idle)/all))
	}
	return err
}

// processors holds the processors' time since the machine started, in seconds.
type processors struct{ idle, all float64 }

func procStat() (processors, error) {
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		return processors{}, err
	}
	st, err := fs.Stat()
	c := st.CPUTotal // guest time is part of user and nice
	return processors{c.Idle + c.Iowait, c.User + c.Nice + c.System + c.Idle + c.Iowait + c.IRQ + c.SoftIRQ + c.Steal}, err
}

func stageEpoch(ctx context.Context, b *bench) (err error) {
	s, err := newSite(ctx, filepath.Join(b.home, b.name), epochLimits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	set := trainSet{n: b.amount(10_000), think: nodes * sampleSize * time.Second / time.Duration(epochLimits.Bandwidth)}
	spec, err := b.ordered(s, set)
	if err != nil {
		return err
	}
	c := course{b: b, s: s, set: set, spec: spec}
	epoch := func(ctx context.Context, arm string, dirs []string) error {
		return b.busy(arm, func() error { return set.train(ctx, dirs, 0, set.n) })
	}
	staged := func(ready func(daemon.DatasetStatus) bool, row, arm string) error {
		var took time.Duration
		n, err := s.read(ctx, func() (err error) {
			took, err = c.run(ctx, ready, func(ctx context.Context, dirs []string) error { return epoch(ctx, arm, dirs) })
			return err
		})
		if err == nil {
			b.take(row, "s", arm, took.Seconds())
			b.takeSource(arm, n, set.bytes())
		}
		return err
	}
	err = b.interleave(ctx,
		arm{armOverlap, func(context.Context, int) error {
			if err := staged(readable, "epoch 1", armOverlap); err != nil {
				return err
			}
			w := b.table.row("epoch 1", "s").Arms[0].Samples
			b.take("epoch 1, beside the source", "s", armOverlap, w[len(w)-1])
			return nil
		}},
		arm{armAll, func(context.Context, int) error { return staged(sealed, "epoch 1", armAll) }},
		arm{armDirect, func(ctx context.Context, _ int) error {
			began := time.Now()
			n, err := s.read(ctx, func() error { return epoch(ctx, armDirect, s.trees()) })
			b.take("epoch 1, beside the source", "s", armDirect, time.Since(began).Seconds())
			b.takeSource(armDirect, n, set.bytes())
			return err
		}})
	b.aim("epoch 1", "s", "<= 0.59")
	b.aim("epoch 1, beside the source", "s", "<= 0.56")
	return err
}

var stageFirstFigure = figure{
	name:   "stage-first",
	memory: 3 << 30,
	about: "from the request to the first batch of 64 samples, read by 4 nodes, of a tar of 10,000 files (1 GiB) that has an index; " +
		"beside a job that stages all of it before; limits as of stage",
	run: stageFirst,
}

func stageFirst(ctx context.Context, b *bench) (err error) {
	s, err := newSite(ctx, filepath.Join(b.home, b.name), siteLimits)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	set := trainSet{n: b.amount(10_000)}
	if _, err := (archive{"set.tar", set.n, sampleSize}).write(s.under); err != nil {
		return err
	}
	index := stagein.Index(filepath.Join(b.home, "index"))
	c := course{b: b, s: s, set: set, spec: job.Dataset{Source: s.own("set.tar"), Name: "set", Options: stagein.Options{Index: index}}}
	batch := func(ctx context.Context, dirs []string) error {
		for i := range dirs {
			dirs[i] = filepath.Join(dirs[i], "set")
		}
		return set.train(ctx, dirs, 0, min(64, set.n))
	}
	if _, err := c.run(ctx, sealed, batch); err != nil { // makes the index
		return err
	}
	if _, err := os.Stat(string(index)); err != nil {
		return fmt.Errorf("the first job has kept no index: %w", err)
	}
	first := func(name string, c course, ready func(daemon.DatasetStatus) bool) arm {
		return arm{name, func(ctx context.Context, _ int) error {
			took, err := c.run(ctx, ready, batch)
			if err == nil {
				b.take("first batch", "s", name, took.Seconds())
			}
			return err
		}}
	}
	plain := c
	plain.spec.Options.Index = stagein.IndexOff
	err = b.interleave(ctx, first(armOverlap, c, readable), first(armAll, plain, sealed))
	b.aim("first batch", "s", "<= 0.10")
	return err
}

var stageOverflowFigure = figure{
	name:   "stage-overflow",
	memory: 3 << 30,
	about: "3 epochs of 4,000 files by one reader on each of 4 nodes, with room for 56 % of them: reads of the source, beside reading the source itself; " +
		"what is read through stays for a while in a window of memory, which helps here",
	run: stageOverflow,
}

const epochs = 3

func stageOverflow(ctx context.Context, b *bench) (err error) {
	s, err := newSite(ctx, filepath.Join(b.home, b.name), slowpfs.Limits{Latency: siteLimits.Latency})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	set := trainSet{n: b.amount(4_000)}
	spec, err := b.ordered(s, set)
	if err != nil {
		return err
	}
	const page = 4096
	onDisk := int64(set.n) * ((sampleSize + page - 1) / page * page)
	c := course{b: b, s: s, set: set, spec: spec, job: local.Config{Capacity: onDisk / nodes * 56 / 100}}
	take := func(arm string, each []slowpfs.Counts) {
		var sum, steady slowpfs.Count
		for i, n := range each {
			sum.Ops += n[slowpfs.Read].Ops
			if i > 0 {
				steady.Ops += n[slowpfs.Read].Ops
			}
		}
		b.take("reads, 3 epochs", "of the files", arm, float64(sum.Ops)/float64(set.n))
		b.take("reads, steady epochs", "of the files", arm, float64(steady.Ops)/float64(set.n))
	}
	err = b.interleave(ctx,
		arm{armBivouac, func(ctx context.Context, _ int) error {
			var each []slowpfs.Counts
			before, err := s.client.Stats(ctx)
			if err != nil {
				return err
			}
			_, err = c.run(ctx, readable, func(ctx context.Context, dirs []string) error {
				for e := range epochs {
					if err := set.train(ctx, dirs, e, set.n); err != nil {
						return err
					}
					after, err := s.client.Stats(ctx)
					if err != nil {
						return err
					}
					each, before = append(each, after.Sum.Since(before.Sum)), after
				}
				return nil
			})
			take(armBivouac, each)
			return err
		}},
		arm{armDirect, func(ctx context.Context, _ int) error {
			var each []slowpfs.Counts
			for e := range epochs {
				n, err := s.read(ctx, func() error { return set.train(ctx, s.trees(), e, set.n) })
				if err != nil {
					return err
				}
				each = append(each, n)
			}
			take(armDirect, each)
			return nil
		}})
	b.aim("reads, 3 epochs", "of the files", "<= 0.63")
	b.aim("reads, steady epochs", "of the files", "<= 0.44")
	return err
}
