package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/deploy/simulate"
	"github.com/bivouacfs/bivouac/integration/netcluster"
	"github.com/bivouacfs/bivouac/integration/slowpfs"
)

// The ways.
const (
	wayLocality = "LocalitySampler"
	waySeed     = "order=seed:S"
	wayReplicas = "replicas=all"
	wayChunk    = "ChunkShuffleSampler"
	waySelect   = "measured selection"
	wayNoPlan   = "no plan"
	wayLocal    = "copy on the disk"
	wayFirst    = "stage first"
	armGuess    = "simulated"
	armMeasured = "measured"
)

// trainLimits is the source of training: slow enough that two processors do the work of four nodes, four ranks, their
// eight workers and the source. A node's link has twice the bandwidth that an epoch needs when three of four samples
// are remote.
var trainLimits = slowpfs.Limits{Latency: 2 * time.Millisecond, Bandwidth: 30_000_000}

// chunkFiles and chunkGroup are ChunkShuffleSampler's arguments in train.py.
const chunkFiles, chunkGroup = 64, 4

const trainLink = 12_500_000 // bytes per second, per node and direction

// newSchool makes the source, the network and n files.
func newSchool(ctx context.Context, b *bench, n int) (sc *school, err error) {
	sc = &school{b: b, limits: trainLimits, t: training{python: b.python, module: b.module, epochs: epochs, batch: 32, work: 2, seed: 7}}
	defer func() {
		if err != nil {
			err = errors.Join(err, sc.close())
		}
	}()
	if b.quick {
		n, sc.t.epochs = 256, 2
	}
	if sc.set, err = makeImages(n); err != nil {
		return sc, err
	}
	steps := (n/nodes + sc.t.batch - 1) / sc.t.batch
	sc.t.step = time.Duration(float64(sc.set.total) / float64(sc.limits.Bandwidth) / float64(steps) * float64(time.Second))
	sc.t.script = filepath.Join(b.home, "train.py")
	if err = os.WriteFile(sc.t.script, script, 0o644); err != nil {
		return sc, err
	}
	if out, err := exec.CommandContext(ctx, sc.t.python, "-c", "import torch, numpy").CombinedOutput(); err != nil {
		return sc, fmt.Errorf("%s has no PyTorch: install Debian's python3-torch, or give --python: %w: %s", sc.t.python, err, lastLine(out))
	}
	if err = sc.examine(ctx); err != nil {
		return sc, err
	}
	if sc.net, err = netcluster.NewNetwork(nodes); err != nil {
		return sc, err
	}
	for i := range nodes {
		if err = sc.net.Limit(i, trainLink); err != nil {
			return sc, err
		}
	}
	if sc.s, err = newSite(ctx, filepath.Join(b.home, b.name), sc.limits); err != nil {
		return sc, err
	}
	return sc, sc.set.write(filepath.Join(sc.s.under, "tree"))
}

func (sc *school) close() (err error) {
	if sc.s != nil {
		err = sc.s.close()
	}
	if sc.net != nil {
		sc.net.Close()
	}
	return err
}

func lastLine(out []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	return lines[len(lines)-1]
}

var trainFigure = figure{
	name:   "train",
	memory: 2 << 30,
	about: "3 epochs of PyTorch, a rank on each of 4 nodes in network namespaces (100 Mbit/s each), batches of 32, 2 workers, 2,048 files of 110 KiB on average; " +
		"source of 30 MB/s, 2 ms; a step lasts as long as the source needs for its bytes; no page of a sample is kept; " +
		"replicas=all with the DistributedSampler of the Python package, the others with torch's unless they are named after one",
	run: trainAll,
}

func trainAll(ctx context.Context, b *bench) (err error) {
	sc, err := newSchool(ctx, b, 2048)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sc.close()) }()
	copies := slices.Repeat([]string{filepath.Join(sc.s.under, "tree")}, nodes)
	seed := sc.seeded()
	ways := []way{
		{name: wayLocality, rows: "3, 6, 8", source: "tree", options: seed, sampler: "locality", ready: readable, needs: []string{needPlan, needModule}},
		{name: waySeed, rows: "1, 2, 4, 6, 8, 10", source: "tree", options: seed, sampler: "torch", ready: readable, needs: []string{needPlan}},
		{name: wayReplicas, rows: "6, 8, 10", source: "tree", options: seed + ",replicas=all", sampler: "bivouac", ready: readable, needs: []string{needPlan, needModule}},
		{name: wayNoPlan, source: "tree", sampler: "torch", ready: readable},
		{name: wayLocal, sampler: "torch", dirs: copies},
		{name: wayFirst, source: "tree", sampler: "torch", ready: sealed},
		{name: armDirect, sampler: "torch", dirs: sc.s.trees()},
	}
	last := make(map[string]outcome)
	if err := sc.compare(ctx, ways, func(w way, o outcome) error {
		last[w.name] = o
		return sc.rows(w, o)
	}); err != nil {
		return err
	}
	return errors.Join(sc.sameBytes(last), sc.simulated(last))
}

// compare runs all ways that can run, in turn, and notes why others cannot.
func (sc *school) compare(ctx context.Context, ways []way, take func(way, outcome) error) error {
	var arms []arm
	for _, w := range ways {
		if !sc.b.arms.MatchString(w.name) {
			continue
		}
		if why := sc.unable(w); why != "" {
			sc.b.note("not available: %s (rows %s): %s", w.name, w.rows, why)
			continue
		}
		arms = append(arms, arm{w.name, func(ctx context.Context, _ int) error {
			o, err := sc.train(ctx, w)
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "%s: %s: %.1f s, %.1f s waited\n", sc.b.name, w.name, o.trained, o.waited(0))
			return take(w, o)
		}})
	}
	return sc.b.interleave(ctx, arms...)
}

// waited returns the seconds that training waited for batches, from an epoch on: each step counts the slowest rank,
// as the others wait for it.
func (o outcome) waited(from int) (sum float64) {
	for e := from; e < len(o.epochs); e++ {
		for s := range o.ranks[0].Epochs[e].Waits {
			longest := 0.0
			for _, r := range o.ranks {
				longest = max(longest, r.Epochs[e].Waits[s])
			}
			sum += longest
		}
	}
	return sum
}

// waits returns the waits of all ranks for all batches, from an epoch on.
func (o outcome) waits(from int) (all []float64) {
	for _, r := range o.ranks {
		for _, e := range r.Epochs[from:] {
			all = append(all, e.Waits...)
		}
	}
	return all
}

// quantile returns the q-quantile of values.
func quantile(v []float64, q float64) float64 {
	s := slices.Sorted(slices.Values(v))
	if len(s) == 0 {
		return 0
	}
	return s[min(len(s)-1, int(q*float64(len(s))))]
}

// perEpoch returns the mean over steady epochs.
func (o outcome) perEpoch(of func(epochSeen) float64) float64 {
	sum := 0.0
	for _, e := range o.epochs[1:] {
		sum += of(e)
	}
	return sum / float64(len(o.epochs)-1)
}

// rows records the values of each way that the rows compare.
func (sc *school) rows(w way, o outcome) error {
	b, name := sc.b, w.name
	is := func(names ...string) bool { return slices.Contains(names, name) }
	if is(waySeed, wayNoPlan) {
		const row = "1 share of the time spent waiting for batches, steady epochs"
		b.take(row, "%", name, 100*o.waited(1)/o.perEpoch(func(e epochSeen) float64 { return e.seconds })/float64(len(o.epochs)-1))
		b.aim(row, "%", "<= 0.25")
	}
	if is(waySeed, wayLocal) {
		const row = "2 wait for a batch, 99 % quantile, steady epochs"
		b.take(row, "ms", name, 1000*quantile(o.waits(1), 0.99))
		b.aim(row, "ms", "<= 2")
	}
	if is(wayLocality, wayNoPlan) {
		const row = "3 sent by the nodes' interfaces, steady epochs"
		b.take(row, "MB per epoch", name, o.perEpoch(func(e epochSeen) float64 { return e.wire })/1e6)
		b.aim(row, "MB per epoch", "<= 0.10")
	}
	if is(waySeed, armDirect) {
		const row = "4 waited for batches, 3 epochs"
		b.take(row, "s", name, o.waited(0))
		b.aim(row, "s", "<= 0.15")
	}
	if w.source != "" || is(armDirect) {
		row := "6 bytes read of the source, " + name
		b.take(row, "of the dataset", name, float64(o.read[slowpfs.Read].Bytes)/float64(sc.set.total))
		if w.source != "" {
			b.want(row, "of the dataset", "1.00")
		}
	}
	b.take("processors busy", "%", name, 100*o.perEpoch(func(e epochSeen) float64 { return e.busy }))
	b.take("sent by the nodes' interfaces, steady epochs", "MB per epoch", name, o.perEpoch(func(e epochSeen) float64 { return e.wire })/1e6)
	b.take("waited for batches in the first epoch", "s", name, o.waited(0)-o.waited(1))
	b.take("waited for batches in a steady epoch", "s", name, o.waited(1)/float64(len(o.epochs)-1))
	b.take("first step done, from the request", "s", name, o.first)
	b.take("first epoch", "s", name, o.epochs[0].seconds)
	b.take("steady epoch", "s", name, o.perEpoch(func(e epochSeen) float64 { return e.seconds }))
	return nil
}

// sameBytes compares the bytes that all ways have read: each sample's sum, each global batch, and, for ways in the
// plain sampler's order, the losses and models, bit for bit.
func (sc *school) sameBytes(all map[string]outcome) error {
	truth, ok := all[wayLocal]
	if !ok {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		o := all[name]
		for e := range truth.ranks[0].Epochs {
			for s := range truth.ranks[0].Epochs[e].Indices {
				if got, want := o.global(e, s), truth.global(e, s); !slices.Equal(got, want) {
					return fmt.Errorf("%s: the samples or bytes of step %d of epoch %d are not those of the copy on the disk: %v, want %v", name, s, e, got, want)
				}
			}
		}
		if name == wayLocal || name == wayLocality {
			continue
		}
		equal := 0
		for r := range o.ranks {
			if o.ranks[r].Loss == truth.ranks[r].Loss && o.ranks[r].Model == truth.ranks[r].Model {
				equal++
			}
		}
		row := "10 ranks with the loss and model of the copy, bit for bit, " + name
		sc.b.take(row, "of 4", name, float64(equal))
		sc.b.want(row, "of 4", "4")
	}
	return nil
}

// global returns the samples of a step of all ranks, with their sums, in order.
func (o outcome) global(epoch, step int) (all [][2]int64) {
	for _, r := range o.ranks {
		e := r.Epochs[epoch]
		for i, n := range e.Indices[step] {
			all = append(all, [2]int64{int64(n), e.Sums[step][i]})
		}
	}
	slices.SortFunc(all, func(a, b [2]int64) int { return slices.Compare(a[:], b[:]) })
	return all
}

// guessed maps each way to the policy that simulates it.
var guessed = map[string]simulate.Policy{
	armDirect: simulate.Direct, wayFirst: simulate.StageFirst, wayNoPlan: simulate.Overlap, waySeed: simulate.Plan, wayLocality: simulate.Locality,
	wayReplicas: simulate.Replicas, wayChunk: simulate.ChunkWise,
}

// simulated compares measured epochs with those of bivouac simulate. Its only input from this machine is a worker's
// time per sample, measured on the copy on the disk.
func (sc *school) simulated(all map[string]outcome) error {
	job := simulate.Job{
		Sizes: sc.set.sizes, Nodes: nodes, Ranks: 1, Epochs: sc.t.epochs, Batch: sc.t.batch, Step: sc.t.step, Workers: sc.t.work, Prefetch: 2,
		Decode:  all[wayLocal].sampleTime(),
		Source:  simulate.Device{Latency: sc.limits.Latency, Bandwidth: sc.limits.Bandwidth},
		Network: simulate.Device{Latency: 500 * time.Microsecond, Bandwidth: trainLink},
		Ahead:   64 << 20, Seed: 1, Room: sc.room, Archive: sc.room > 0, Chunk: chunkFiles, Group: chunkGroup,
	}
	for _, name := range slices.Sorted(maps.Keys(guessed)) {
		o, ok := all[name]
		if !ok {
			continue
		}
		r, err := simulate.Run(&job, guessed[name])
		if err != nil {
			return err
		}
		for _, c := range []struct {
			row             string
			guess, measured float64
		}{
			{"8 first epoch, ", r.Epochs[0].Seconds, o.epochs[0].seconds},
			{"8 steady epoch, ", r.Epochs[1].Seconds, o.perEpoch(func(e epochSeen) float64 { return e.seconds })},
		} {
			sc.b.take(c.row+name, "s", armGuess, c.guess)
			sc.b.take(c.row+name, "s", armMeasured, c.measured)
			sc.b.aim(c.row+name, "s", "0.85 to 1.15")
		}
		if sc.room > 0 {
			row := "requests to the source, steady epoch, simulated : measured, " + name
			sc.b.take(row, "", armGuess, r.Epochs[1].Requests)
			sc.b.take(row, "", armMeasured, o.perEpoch(func(e epochSeen) float64 { return float64(e.source.Total().Ops) }))
		}
	}
	return nil
}

// sampleTime returns a worker's mean time for a sample.
func (o outcome) sampleTime() time.Duration {
	sum, n := 0.0, 0
	for _, r := range o.ranks {
		for _, e := range r.Epochs[1:] {
			sum += e.Reads
			for _, b := range e.Indices {
				n += len(b)
			}
		}
	}
	return time.Duration(sum / float64(max(n, 1)) * float64(time.Second))
}
