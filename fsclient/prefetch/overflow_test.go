package prefetch

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// overflowing is a job in virtual time: a rank on each node, whose loader has two workers, trains on a dataset of which
// a part stays in the source. All nodes share the source, which serves one request after another.
type overflowing struct {
	t       *testing.T
	plan    accessplan.Plan
	follows bool // nodes have the access plan
	budget  int  // in files
	size    int  // files in the dataset
	hurry   bool // training needs more bandwidth than the source has

	now      time.Duration
	free     time.Duration // when the source has answered all requests so far
	requests int           // to the source
	files    int           // sent by the source
	asked    map[int]overflowAsk
	shared   int // requests for a run that another node requested within the same second
	nodes    []*overflowNode
	stalls   []time.Duration // of each step of the steady epochs
}

type overflowNode struct {
	t       *Tracker
	e       Epoch
	flying  []overflowFetch
	queued  [][]Want // runs not yet requested
	window  window
	under   []overflowFlight
	here    map[int]bool // fetched files
	workers [2]overflowWorker
	loaded  []bool // batches loaded
}

// overflowAsk is the last request for a run.
type overflowAsk struct {
	node *overflowNode
	at   time.Duration
}

type overflowWorker struct {
	batch, at int // position in the epoch
	until     time.Duration
}

// overflowFlight is a request for a run in flight.
type overflowFlight struct {
	bytes int64
	done  time.Duration
}

type overflowFetch struct {
	Want
	began, done time.Duration
}

const (
	overflowFiles = 2048
	overflowRun   = 8 // files in one run of the source
	overflowBatch = 32
	sourceLatency = 2 * time.Millisecond
	sourceFile    = 4 * time.Millisecond // time of the source for the bytes of a file
	overflowBytes = 110_000              // size of a file, for the window
	overflowTick  = time.Millisecond
)

// stays reports whether a file overflows: whole runs do, 44 % of them.
func (o *overflowing) stays(file int) bool { return file/overflowRun*7919%100 < 44 }

func (o *overflowing) beside(file int, wanted func(int) bool) (all []int) {
	if !o.stays(file) {
		return nil
	}
	first, last := file, file
	for f := file + 1; f < (file/overflowRun+1)*overflowRun && f == last+1; f++ {
		if wanted(f) {
			all, last = append(all, f), f
		}
	}
	for f := file - 1; f >= file/overflowRun*overflowRun && f == first-1; f-- {
		if wanted(f) {
			all, first = append(all, f), f
		}
	}
	return all
}

// ask returns when the source answers a node's request for a number of files of a run.
func (o *overflowing) ask(n *overflowNode, file, files int) time.Duration {
	o.requests++
	if was, ok := o.asked[file/overflowRun]; ok && was.node != n && o.now-was.at < time.Second {
		o.shared++
	}
	o.asked[file/overflowRun] = overflowAsk{n, o.now}
	o.files += files
	o.free = max(o.free, o.now) + time.Duration(files)*sourceFile
	return o.free + sourceLatency
}

func (o *overflowing) clock() time.Time { return time.Unix(1e9, 0).Add(o.now) }

// p99 returns the 99 % quantile of the stalls.
func (o *overflowing) p99() time.Duration {
	return slices.Sorted(slices.Values(o.stalls))[len(o.stalls)*99/100]
}

func (o *overflowing) run() {
	o.plan.Epochs, o.size, o.asked = 4, max(o.size, overflowFiles), make(map[int]overflowAsk)
	for range o.plan.Ranks {
		n := &overflowNode{here: make(map[int]bool)}
		n.t = New(planned{o.plan, o.size}, Config{Budget: int64(o.budget) * fileSize, Mean: fileSize, Neighbours: o.beside, Overflows: o.stays})
		o.nodes = append(o.nodes, n)
	}
	for number := range o.plan.Epochs {
		if number == 1 {
			o.requests, o.files, o.shared, o.stalls = 0, 0, 0, nil
		}
		o.epoch(number)
	}
}

func (o *overflowing) epoch(number int) {
	e, err := o.plan.Epoch(number, o.size)
	if err != nil {
		o.t.Fatal(err)
	}
	steps := (e.Len(0) + overflowBatch - 1) / overflowBatch
	for _, n := range o.nodes {
		n.e, n.loaded = e, make([]bool, steps)
		for k := range n.workers {
			n.workers[k] = overflowWorker{batch: k, at: k * overflowBatch}
		}
	}
	step := time.Duration(overflowBatch*len(o.nodes)) * sourceFile * 6 / 10 // the source needs 0.73 of a step
	if o.hurry {
		step /= 3
	}
	ends := o.now
	for trained := 0; trained < steps; {
		for rank, n := range o.nodes {
			o.fetch(n)
			for k := range n.workers {
				o.load(n, rank, k, number, trained)
			}
		}
		ready := o.now >= ends && !slices.ContainsFunc(o.nodes, func(n *overflowNode) bool { return !n.loaded[trained] })
		if ready {
			o.stalls = append(o.stalls, o.now-ends)
			ends = o.now + step
			trained++
		}
		o.now += overflowTick
	}
	o.now = ends
}

// fetch runs a node's prefetch.
func (o *overflowing) fetch(n *overflowNode) {
	if !o.follows {
		return
	}
	n.flying = slices.DeleteFunc(n.flying, func(f overflowFetch) bool {
		if f.done > o.now {
			return false
		}
		n.here[f.File] = n.t.Fetched(f.Want, Kept, fileSize, f.done-f.began, o.clock()) || n.here[f.File]
		return true
	})
	runs := make(map[int][]Want)
	for _, w := range n.t.Next(mostWants, o.clock()) {
		if o.stays(w.File) {
			runs[w.Run] = append(runs[w.Run], w)
			continue
		}
		n.flying = append(n.flying, overflowFetch{w, o.now, o.now + 5*time.Millisecond})
	}
	for _, run := range slices.Sorted(maps.Keys(runs)) {
		n.queued = append(n.queued, runs[run])
	}
	n.under = slices.DeleteFunc(n.under, func(f overflowFlight) bool {
		if f.done > o.now {
			return false
		}
		n.window.end(f.bytes, f.bytes, o.clock())
		return true
	})
	for len(n.queued) > 0 && n.window.room(1) > 0 {
		n.queued[0] = slices.DeleteFunc(n.queued[0], func(w Want) bool { return n.t.overtaken(w, o.clock()) })
		if len(n.queued[0]) == 0 {
			n.queued = n.queued[1:]
			continue
		}
		f := overflowFlight{int64(len(n.queued[0])) * overflowBytes, o.ask(n, n.queued[0][0].File, len(n.queued[0]))}
		n.window.begin(f.bytes, o.clock())
		n.under = append(n.under, f)
		for _, w := range n.queued[0] {
			n.flying = append(n.flying, overflowFetch{w, o.now, f.done})
		}
		n.queued = n.queued[1:]
	}
	for _, f := range n.t.Released() {
		delete(n.here, f)
	}
	if s := n.t.State(); s.Memory > int64(o.budget)*fileSize {
		o.t.Fatalf("%d bytes held", s.Memory)
	}
}

// load advances a worker, which reads the files of a batch one after another.
func (o *overflowing) load(n *overflowNode, rank, k, number, trained int) {
	w := &n.workers[k]
	for w.until <= o.now && w.batch < len(n.loaded) && w.batch < trained+4 {
		if w.at == n.e.Len(rank) || w.at == (w.batch+1)*overflowBatch {
			n.loaded[w.batch] = true
			w.batch += len(n.workers)
			w.at = w.batch * overflowBatch
			continue
		}
		file := n.e.At(rank, w.at)
		if w.at%overflowBatch == 0 && o.follows {
			n.t.Position(rank, number, min(trained*overflowBatch, n.e.Len(rank)), o.clock())
		}
		if i := slices.IndexFunc(n.flying, func(f overflowFetch) bool { return f.File == file }); i >= 0 && !n.here[file] {
			w.until = n.flying[i].done
			return
		}
		if !n.here[file] && o.stays(file) {
			w.until = o.ask(n, file, 1)
		}
		delete(n.here, file)
		if o.follows {
			n.t.Observe(file, o.clock())
		}
		w.at++
	}
}

// TestOverflowByChunks: with room for 56 %, the plan of a chunk-wise shuffle reads the source in runs, each byte once
// for all nodes, and early enough, even if a group of chunks takes all of an epoch, or if the budget is one group.
// Without a plan, each file of a full shuffle is one request, sent when a worker asks for it. Nodes seldom want the
// same run within a second. Measured after the first epoch.
func TestOverflowByChunks(t *testing.T) {
	random := overflowing{t: t, plan: accessplan.Plan{Kind: accessplan.Torch, Shuffle: true, Seed: 5, Ranks: 4}, budget: 1}
	random.run()
	for _, c := range []struct {
		group, budget int
		requests      float64 // limit per file; a run has 8 files
	}{{4, 1024, 0.18}, {4, 256, 0.21}, {8, 1024, 0.21}} {
		o := overflowing{t: t, plan: accessplan.Plan{Kind: accessplan.Chunk, Seed: 5, Ranks: 4, Chunk: 64, Group: c.group}, budget: c.budget, follows: true}
		o.run()
		requests, p99 := float64(o.requests)/float64(o.files), o.p99()
		if requests > c.requests || float64(o.files) > 1.02*float64(random.files) || p99 > random.p99()/4 || o.shared*8 > o.requests {
			t.Errorf("%+v: %.3f requests a file, %d files read from the source for %d reads, stall %v : %v, %d of %d requests shared", c, requests, o.files,
				random.files, p99, random.p99(), o.shared, o.requests)
		}
	}
}

// TestOverflowInAHurry: if the source is too slow for the ranks, files that readers have already passed are not
// requested: with a plan the source reads no more than without.
func TestOverflowInAHurry(t *testing.T) {
	torch := accessplan.Plan{Kind: accessplan.Torch, Shuffle: true, Seed: 5, Ranks: 4}
	random := overflowing{t: t, plan: torch, budget: 1, hurry: true}
	random.run()
	o := overflowing{t: t, plan: torch, budget: 1024, follows: true, hurry: true}
	o.run()
	if float64(o.files) > 1.02*float64(random.files) || o.requests > random.requests || o.now > random.now {
		t.Errorf("%d files by %d requests, in %v, without a plan %d by %d, %v", o.files, o.requests, o.now, random.files, random.requests, random.now)
	}
}

// TestOverflowWhileFilling: during the stage-in, no file is fetched from the source before its reader asks. Staged
// files are prefetched, and the others follow once all files are staged.
func TestOverflowWhileFilling(t *testing.T) {
	o, filling, now := overflowing{}, true, time.Unix(1e9, 0)
	order := planned{accessplan.Plan{Kind: accessplan.Chunk, Seed: 5, Ranks: 4, Epochs: 2, Chunk: 64, Group: 4}, overflowFiles}
	tr := New(order, Config{
		Budget: overflowFiles * 4 * fileSize, Mean: fileSize, Neighbours: o.beside, Overflows: o.stays, Filling: func() bool { return filling },
	})
	tr.Position(0, 0, 0, now)
	fetch := func() (staged, overflow int) {
		for ws := tr.Next(mostWants, now); len(ws) > 0; ws = tr.Next(mostWants, now) {
			for _, w := range ws {
				if o.stays(w.File) {
					overflow++
				} else {
					staged++
				}
				tr.Fetched(w, Kept, fileSize, time.Millisecond, now)
			}
		}
		return staged, overflow
	}
	if staged, overflow := fetch(); staged == 0 || overflow > 0 {
		t.Errorf("%d staged files and %d of the source while files are staged", staged, overflow)
	}
	filling = false
	if _, overflow := fetch(); overflow == 0 {
		t.Error("none of the source after that")
	}
}
