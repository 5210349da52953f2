package prefetch

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// shuffled is a plan like torch's: each epoch has its own permutation, dealt to the ranks.
type shuffled struct {
	files, ranks, epochs int
	seed                 uint64
	known                bool // whether the plan has the number of ranks
}

func (s shuffled) Files() int  { return s.files }
func (s shuffled) Epochs() int { return s.epochs }

func (s shuffled) Ranks() int {
	if s.known {
		return s.ranks
	}
	return 0
}

func (s shuffled) Epoch(n, ranks int) (Epoch, error) {
	key := [4]int{int(s.seed), n, ranks, s.files}
	if e, ok := epochs[key]; ok {
		return e, nil
	}
	if len(epochs) > 64 {
		clear(epochs)
	}
	r := rand.New(rand.NewPCG(s.seed, uint64(n)))
	e := dealt{ranks: ranks, order: r.Perm(s.files), turn: make([]int, s.files)}
	epochs[key] = e
	for i, f := range e.order {
		e.turn[f] = i
	}
	return e, nil
}

// epochs caches the last epochs, since permutations take most of the time of these tests.
var epochs = make(map[[4]int]dealt)

type dealt struct {
	ranks       int
	order, turn []int
}

func (d dealt) Len(int) int          { return (len(d.order) + d.ranks - 1) / d.ranks }
func (d dealt) At(rank, pos int) int { return d.order[(pos*d.ranks+rank)%len(d.order)] }
func (d dealt) Find(f int) (rank, pos int, ok bool) {
	return d.turn[f] % d.ranks, d.turn[f] / d.ranks, true
}

// loader is a training script on one node, with the engine and the kernel beside it.
type loader struct {
	rand *rand.Rand
	plan shuffled // as known to the tracker
	real shuffled // the script's actual order
	same bool     // set_epoch is never called

	local   []int       // ranks of this node
	dies    map[int]int // rank: epoch at whose middle it dies
	joins   map[int]int // rank: its first epoch
	workers int
	batch   int
	epochs  int
	skip    float64 // share of the files read without the daemon
	opens   bool    // opens of these files are seen
	mixed   bool    // opens of all files are seen, after at most openEvery
	valid   int     // reads of validation files of the dataset after each epoch
	exact   bool    // the script reports positions
	unknown float64 // share of the files whose inode is unknown to the kernel: they stay in memory
	waits   bool    // a read waits for its file in flight, else it fetches the file itself
	cached  bool    // the kernel keeps all pages until they are dropped
	evicts  int     // first epoch in which it does not; 0: never

	t      *Tracker
	now    time.Time
	kernel map[int]bool // stored in the page cache
	memory map[int]bool // kept in memory
	flying []fetch
	opened []int // not delivered yet
	look   time.Time

	// By epoch.
	reads, ahead []int
	wants        []int
	peak         int64
	phases       []accessplan.Phase
}

type fetch struct {
	Want
	done time.Time
	met  bool // a read waits for it
}

const (
	fileSize  = 1000
	openEvery = 50 * time.Millisecond
)

func (l *loader) run(t *testing.T, budget int64) {
	l.t = New(l.plan, Config{Budget: budget, Mean: fileSize})
	l.now = time.Unix(1e9, 0)
	l.kernel, l.memory = make(map[int]bool), make(map[int]bool)
	l.reads, l.ahead, l.wants = make([]int, l.epochs), make([]int, l.epochs), make([]int, l.epochs)
	for e := range l.epochs {
		l.epoch(t, e)
		for range l.valid {
			l.read(l.rand.IntN(l.plan.files), -1)
		}
		l.phases = append(l.phases, l.t.State().Phase)
	}
	for _, f := range l.t.Released() {
		delete(l.memory, f)
	}
	if kept := len(l.memory); kept > 0 && l.t.State().Memory < int64(kept)*fileSize {
		t.Errorf("%d files are kept in memory, the tracker knows of %d bytes", kept, l.t.State().Memory)
	}
}

// epoch reads an epoch: each rank through its workers, which take turns at random.
func (l *loader) epoch(t *testing.T, e int) {
	number := e
	if l.same {
		number = 0
	}
	real, _ := l.real.Epoch(number, l.real.ranks)
	length := real.Len(0)
	type worker struct{ rank, k, at, end int }
	var ws []*worker
	used, begun := make(map[int]int), make(map[int]int)
	w := max(l.workers, 1)
	for _, r := range l.local {
		if d, ok := l.dies[r]; l.joins[r] > e || ok && e > d {
			continue
		}
		for k := range w {
			ws = append(ws, &worker{rank: r, k: k})
		}
	}
	// oldest returns the first unread batch of a rank.
	oldest := func(rank int) int {
		b := begun[rank]
		for _, x := range ws {
			if x.rank == rank && x.at < x.end {
				b = min(b, x.at/l.batch)
			}
		}
		return b
	}
	steps := 0
	for len(ws) > 0 {
		x := ws[l.rand.IntN(len(ws))]
		if x.at >= x.end {
			b := begun[x.rank]
			if b*l.batch >= length {
				ws = slices.DeleteFunc(ws, func(o *worker) bool { return o == x })
				continue
			}
			if b%w != x.k || b >= oldest(x.rank)+2*w {
				continue // torch deals the batches to the workers in turn, two each ahead of the script
			}
			begun[x.rank]++
			x.at, x.end = b*l.batch, min((b+1)*l.batch, length)
		}
		if d, ok := l.dies[x.rank]; ok && d == e && x.at > length/2 {
			ws = slices.DeleteFunc(ws, func(o *worker) bool { return o.rank == x.rank })
			continue
		}
		if l.exact && x.at%l.batch == 0 {
			l.t.Position(x.rank, number, min(used[x.rank], length), l.now)
		}
		used[x.rank]++
		l.read(real.At(x.rank, x.at), e)
		x.at++
		if steps++; steps%4 == 0 {
			l.engine(t, e)
		}
	}
}

// read is one read by the script; reads with epoch -1 are not counted.
func (l *loader) read(f, e int) {
	l.now = l.now.Add(time.Duration(100+l.rand.IntN(400)) * time.Microsecond)
	if l.mixed {
		l.opened = append(l.opened, f)
		if l.now.Sub(l.look) >= openEvery {
			for _, f := range l.opened {
				l.t.Opened(f, l.now)
			}
			l.opened, l.look = nil, l.now
		}
	}
	if l.hidden(f) {
		if l.opens {
			l.t.Opened(f, l.now)
		}
		return
	}
	prefetched := l.kernel[f] || l.memory[f]
	for i := range l.flying {
		if l.waits && l.flying[i].File == f {
			l.flying[i].met, prefetched = true, true
		}
	}
	if e >= 0 {
		l.reads[e]++
		if prefetched {
			l.ahead[e]++
		}
	}
	keeps := l.cached && (l.evicts == 0 || e < l.evicts)
	if l.kernel[f] { // the daemon does not see it; the page may be evicted later
		if !keeps {
			delete(l.kernel, f)
		}
		return
	}
	l.kernel[f] = keeps
	delete(l.memory, f)
	l.t.Observe(f, l.now)
}

// hidden reports whether the kernel reads a file by itself.
func (l *loader) hidden(f int) bool { return float64(f*7919%1000) < l.skip*1000 }

func (l *loader) engine(t *testing.T, e int) {
	l.flying = slices.DeleteFunc(l.flying, func(f fetch) bool {
		if l.now.Before(f.done) {
			return false
		}
		res := Stored
		if f.Probe || l.rand.Float64() < l.unknown {
			res = Kept
		}
		if f.met {
			res = Met
		}
		if l.rand.IntN(50) == 0 {
			res = Later
		}
		if l.hidden(f.File) {
			res = Failed // it is on this node
		}
		if f.Beacon && res == Kept {
			delete(l.kernel, f.File)
		}
		wanted := l.t.Fetched(f.Want, res, fileSize, 2*time.Millisecond, l.now)
		if wanted && res == Kept {
			l.memory[f.File] = true
		}
		if res == Stored {
			l.kernel[f.File] = true
		}
		return true
	})
	for _, w := range l.t.Next(32, l.now) {
		l.wants[e]++
		l.flying = append(l.flying, fetch{Want: w, done: l.now.Add(time.Duration(1+l.rand.IntN(3)) * time.Millisecond)})
	}
	for _, f := range l.t.Released() {
		delete(l.memory, f)
	}
	s := l.t.State()
	l.peak = max(l.peak, s.Memory)
	if budget := l.t.cfg.Budget; s.Memory > budget {
		t.Fatalf("%d bytes held, the budget is %d", s.Memory, budget)
	}
}

// random returns a loader with random parameters.
func random(seed uint64) *loader {
	r := rand.New(rand.NewPCG(seed, 1))
	ranks, each := 1+r.IntN(8), 800+r.IntN(2000)
	l := &loader{
		rand: r, epochs: 3, workers: r.IntN(9), batch: 1 + r.IntN(48),
		plan: shuffled{files: ranks * each, ranks: ranks, epochs: r.IntN(2) * 3, seed: seed, known: true},
		skip: float64(r.IntN(3)) * 0.25, unknown: float64(r.IntN(3)) / 2, exact: r.IntN(4) == 0,
		waits: seed%2 == 0, opens: seed%3 == 0,
	}
	l.batch = min(l.batch, each/6/max(l.workers, 1)) // else all of an epoch is read at once
	l.real = l.plan
	for k := range ranks {
		if k == 0 || r.IntN(2) == 0 && len(l.local) < 4 {
			l.local = append(l.local, k)
		}
	}
	return l
}

func (l *loader) String() string {
	return fmt.Sprintf("%d files, %d of %d ranks, %d workers, batch %d, %.2f local, exact %v: reads %v ahead %v wants %v phases %v, %+v",
		l.plan.files, len(l.local), l.plan.ranks, l.workers, l.batch, l.skip, l.exact, l.reads, l.ahead, l.wants, l.phases, l.t.State())
}

var more = flag.Int("loaders", 6, "random loaders per test")

// TestFollows: for any loader, most of its reads are prefetched from the first epoch on.
func TestFollows(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.run(t, 1<<30)
		for e, n := range l.reads {
			least := 0.8
			if e == 0 {
				least = 0.5
			}
			if float64(l.ahead[e]) < least*float64(n) {
				t.Errorf("seed %d: epoch %d: %d of %d reads were prefetched: %v", seed, e, l.ahead[e], n, l)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// TestOpened: ranks whose files the kernel reads by itself are followed by their opens, neither hits nor misses.
func TestOpened(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.opens, l.skip, l.exact, l.plan.epochs, l.epochs = true, 1, false, 0, 4
		l.run(t, 1<<30)
		l.atEnd(t, seed, 0)
		if s := l.t.State(); s.Hits+s.Misses != 0 {
			t.Errorf("seed %d: %v", seed, l)
		}
	}
}

// TestMixed: opens arrive later than the reads that the daemon serves, so that the two orders mix.
func TestMixed(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.mixed, l.opens, l.skip, l.exact, l.plan.epochs, l.epochs = true, false, []float64{0.5, 0.75, 0.95, 0.99}[seed%4], false, 0, 4
		l.run(t, 1<<30)
		l.atEnd(t, seed, int(openEvery/(100*time.Microsecond)))
		if s := l.t.State(); s.Reason != "" {
			t.Errorf("seed %d: %v", seed, l)
		}
	}
}

// atEnd checks that all ranks are followed to the end, within unseen positions and what workers read ahead.
func (l *loader) atEnd(t *testing.T, seed uint64, unseen int) {
	t.Helper()
	s := l.t.State()
	if s.Phase != accessplan.Following || len(s.Ranks) != len(l.local) {
		t.Errorf("seed %d: %v", seed, l)
	}
	for _, r := range s.Ranks {
		each := l.plan.files / l.plan.ranks
		far := r.Epoch*each + r.Position - l.epochs*each
		if most := 2*l.batch*max(l.workers, 1) + leastWindow + unseen; max(far, -far) > most {
			t.Errorf("seed %d: rank %d is at %d of epoch %d, want the end of epoch %d: %v", seed, r.Rank, r.Position, r.Epoch, l.epochs-1, l)
		}
	}
}

// TestCached: ranks whose files are in the kernel's cache are followed through every epoch, with few fetches.
func TestCached(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.cached, l.exact, l.unknown, l.skip, l.plan.epochs, l.epochs = true, false, 0, 0, 0, 4
		l.run(t, 1<<30)
		s, last := l.t.State(), l.epochs-1
		if s.Phase != accessplan.Following || s.Epoch < last || len(s.Ranks) != len(l.local) || s.Hits < int64(l.reads[0])*7/2 {
			t.Errorf("seed %d: the last epoch was not followed: %v", seed, l)
		}
		for _, r := range s.Ranks {
			if far := beaconsFar + 2*l.batch*max(l.workers, 1); r.Epoch == last && r.Position < l.plan.files/l.plan.ranks-far {
				t.Errorf("seed %d: position of rank %d: %d of %d: %v", seed, r.Rank, r.Position, l.plan.files/l.plan.ranks, l)
			}
		}
		// Ranks on other nodes read other files of each epoch: what is read here is cached a few epochs later.
		if len(l.local) == l.plan.ranks && l.wants[last] > l.reads[last]/8 {
			t.Errorf("seed %d: %d files that the kernel had were fetched again: %v", seed, l.wants[last], l)
		}
		if t.Failed() {
			return
		}
	}
}

// TestEvicted: when the kernel evicts cached files, they are fetched ahead again.
func TestEvicted(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.cached, l.exact, l.unknown, l.skip, l.plan.epochs, l.epochs, l.evicts = true, false, 0, 0, 0, 6, 3
		l.run(t, 1<<30)
		if last := l.epochs - 1; float64(l.ahead[last]) < 0.8*float64(l.reads[last]) || float64(l.wants[last]) < 0.8*float64(l.reads[last]) {
			t.Fatalf("seed %d: %v", seed, l)
		}
	}
}

// TestSameOrder: a script that never calls set_epoch is detected, reported and followed.
func TestSameOrder(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.same, l.exact, l.plan.epochs = true, false, 0
		l.run(t, 1<<30)
		last := l.epochs - 1
		if float64(l.ahead[last]) < 0.7*float64(l.reads[last]) || l.t.State().Reason != SameOrder {
			t.Fatalf("seed %d: %v", seed, l)
		}
	}
}

// TestWrongSeed: a plan with the wrong seed soon becomes stale, and then fetches nothing.
func TestWrongSeed(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.exact = false
		l.real.seed += 1000
		l.run(t, 1<<30)
		all := 0
		for _, n := range l.wants {
			all += n
		}
		if visible := l.reads[0] + l.reads[1] + l.reads[2]; visible > 1500 && l.t.State().Phase != accessplan.Stale || all > visible/10+200 || l.wants[2] > 200 {
			t.Fatalf("seed %d: %v", seed, l)
		}
	}
}

// TestValidation: reads of validation samples between the epochs do not make the plan stale.
func TestValidation(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.valid = 50 + l.rand.IntN(500)
		l.run(t, 1<<30)
		for e := 1; e < l.epochs; e++ {
			if float64(l.ahead[e]) < 0.5*float64(l.reads[e]) {
				t.Fatalf("seed %d: epoch %d: %v", seed, e, l)
			}
		}
	}
}

// TestUnknownRanks: the number of ranks is learned.
func TestUnknownRanks(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.plan.known, l.exact, l.skip = false, false, 0
		l.run(t, 1<<30)
		if float64(l.ahead[2]) < 0.6*float64(l.reads[2]) {
			t.Fatalf("seed %d: %v", seed, l)
		}
	}
}

// TestRanksComeAndGo: a rank dies, and another one starts later.
func TestRanksComeAndGo(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.local = []int{0}
		l.plan.ranks, l.plan.files = max(l.plan.ranks, 3), max(l.plan.files, 3*800)
		l.real = l.plan
		l.local = []int{0, 1, 2}
		l.dies, l.joins = map[int]int{1: 0}, map[int]int{2: 1}
		l.run(t, 1<<30)
		if float64(l.ahead[2]) < 0.7*float64(l.reads[2]) {
			t.Fatalf("seed %d: %v", seed, l)
		}
		for _, r := range l.t.State().Ranks {
			if r.Rank == 1 {
				t.Fatalf("seed %d: the dead rank is followed: %v", seed, l)
			}
		}
	}
}

// TestBudget: the budget is never exceeded, and a small one still helps.
func TestBudget(t *testing.T) {
	for seed := range uint64(*more) {
		l := random(seed)
		l.workers, l.batch = min(l.workers, 2), min(l.batch, 16)
		budget := int64(40+l.rand.IntN(200)) * fileSize * int64(len(l.local))
		l.run(t, budget) // it checks the bound
		if float64(l.ahead[2]) < 0.4*float64(l.reads[2]) {
			t.Fatalf("seed %d, budget of %d files: %v", seed, budget/fileSize, l)
		}
	}
	l := random(1)
	l.run(t, 0)
	if s := l.t.State(); s.Phase != accessplan.Off || l.wants[0] != 0 {
		t.Errorf("without a budget: %v", l)
	}
}

// TestMet: a read of a file in flight is a hit if it waited, else a miss; no memory is held for it afterwards.
func TestMet(t *testing.T) {
	for _, c := range []struct {
		res          Result
		want         bool
		hits, misses int64
	}{{Met, true, 1, 0}, {Stored, false, 0, 1}, {Kept, false, 0, 1}, {Later, false, 0, 1}, {Failed, false, 0, 1}} {
		tr := New(shuffled{files: 100, ranks: 2, known: true}, Config{Budget: 1 << 20, Mean: 10})
		now := time.Unix(1e9, 0)
		tr.Position(0, 0, 0, now)
		w := tr.Next(1, now)[0]
		tr.Observe(w.File, now)
		if got := tr.Fetched(w, c.res, 10, time.Millisecond, now); got != c.want {
			t.Errorf("result %d: Fetched = %v, want %v", c.res, got, c.want)
		}
		if n := tr.State(); n.Hits != c.hits || n.Misses != c.misses {
			t.Errorf("result %d: %d hits and %d misses, want %d and %d", c.res, n.Hits, n.Misses, c.hits, c.misses)
		}
		if kept := slices.Contains(tr.Released(), w.File); kept != (c.res == Met) || tr.State().Memory != 0 {
			t.Errorf("result %d: released %v, %d bytes held", c.res, kept, tr.State().Memory)
		}
	}
}

// TestLost: files whose pages are lost before they are read are fetched again, unless they were read or are in memory.
func TestLost(t *testing.T) {
	const ahead = 64
	now := time.Unix(1000, 0)
	tr := New(shuffled{files: 4000, ranks: 1, seed: 1, known: true}, Config{Budget: ahead * 1000, Mean: 1000})
	tr.Position(0, 0, 0, now)
	first := tr.Next(ahead, now)
	stored := map[int]bool{}
	for _, w := range first {
		res := Stored
		if w.Probe {
			res = Kept
		}
		stored[w.File] = !w.Probe
		tr.Fetched(w, res, 1000, time.Millisecond, now)
	}
	tr.Position(0, 0, 10, now)
	tr.Lost()
	again := map[int]bool{}
	for _, w := range tr.Next(10*ahead, now) {
		again[w.File] = true
	}
	for i, w := range first {
		if want := stored[w.File] && i >= 10; again[w.File] != want {
			t.Errorf("file at %d, probe %v: wanted again %v, want %v", i, w.Probe, again[w.File], want)
		}
	}
}

// TestNonsense: files and positions that do not exist are ignored.
func TestNonsense(t *testing.T) {
	tr := New(shuffled{files: 100, ranks: 2, known: true}, Config{Budget: 1 << 20, Mean: 10})
	now := time.Unix(1e9, 0)
	for _, f := range []int{-1, 100, 1 << 40} {
		tr.Observe(f, now)
	}
	for _, p := range [][3]int{{-1, 0, 0}, {2, 0, 0}, {0, -1, 0}, {0, 0, -1}, {0, 0, 51}} {
		tr.Position(p[0], p[1], p[2], now)
	}
	if s := tr.State(); s.Phase != accessplan.Waiting || len(tr.Next(10, now)) > 0 || len(s.Ranks) > 0 {
		t.Errorf("%+v", s)
	}
	tr.Fetched(Want{File: 5}, Kept, 10, time.Second, now)
	tr.Position(1, 7, 3, now)
	if s := tr.State(); s.Phase != accessplan.Following || s.Epoch != 7 || len(s.Ranks) != 1 || s.Ranks[0].Position != 3 || s.Memory != 0 {
		t.Errorf("%+v", s)
	}
	if ws := tr.Next(1, now); len(ws) != 1 || ws[0].Rank != 1 || !ws[0].Beacon {
		t.Errorf("Next = %+v", ws)
	}
}

// TestNeighboursTogether: a file is fetched together with those adjacent in the source that its rank reads soon. Each
// is fetched once, the budget holds, and files that are read next are first.
func TestNeighboursTogether(t *testing.T) {
	const group, files = 8, 4096
	for _, budget := range []int{files, files / 8, 64} {
		plan := shuffled{files: files, ranks: 2, epochs: 1, seed: 3, known: true}
		beside := func(file int, wanted func(int) bool) (all []int) {
			for f := file / group * group; f < file/group*group+group; f++ {
				if f != file && wanted(f) {
					all = append(all, f)
				}
			}
			return all
		}
		tr := New(plan, Config{Budget: int64(budget) * fileSize, Mean: fileSize, Neighbours: beside})
		now := time.Unix(1e9, 0)
		e, _ := plan.Epoch(0, 2)
		fetched, runs := map[int]bool{}, map[int]bool{}
		for pos := range e.Len(1) {
			tr.Position(1, 0, pos, now)
			for _, w := range tr.Next(4, now) {
				if fetched[w.File] {
					t.Fatalf("budget %d: file %d is wanted once more", budget, w.File)
				}
				fetched[w.File], runs[w.Run] = true, true
				tr.Fetched(w, Stored, fileSize, time.Millisecond, now)
			}
			if s := tr.State(); s.Memory > int64(budget)*fileSize {
				t.Fatalf("budget %d: %d bytes held", budget, s.Memory)
			}
			if pos > 0 && !fetched[e.At(1, pos)] {
				t.Errorf("budget %d: the file at %d is not fetched when it is read", budget, pos)
			}
			now = now.Add(time.Millisecond)
		}
		// A rank reads about half of each group.
		if most := len(fetched) * 2 / 5; budget == files && len(runs) > most {
			t.Errorf("%d files in %d runs, want %d at the most", len(fetched), len(runs), most)
		}
	}
}

// TestBurst: before an epoch ends, the first files of the next one are fetched, for each kind of plan, and more of them
// than a rank reads ahead within an epoch; after the last epoch none are.
func TestBurst(t *testing.T) {
	const files = 2000
	indices := make([]uint32, files)
	for i := range indices {
		indices[i] = uint32((i * 7) % files)
	}
	for _, plan := range []accessplan.Plan{
		{Kind: accessplan.Torch, Seed: 5, Shuffle: true},
		{Kind: accessplan.Random, Seed: 5},
		{Kind: accessplan.Loader, Seed: 5},
		{Kind: accessplan.Chunk, Seed: 5, Chunk: 16, Group: 8},
		{Kind: accessplan.List, Indices: indices},
	} {
		plan.Ranks, plan.Epochs = 2, 2
		tr := New(planned{plan, files}, Config{Budget: 1 << 30, Mean: fileSize})
		now := time.Unix(1e9, 0)
		for number := range plan.Epochs {
			e, err := plan.Epoch(number, files)
			if err != nil {
				t.Fatal(err)
			}
			for pos := range e.Len(1) + 1 { // no time passes: the rank is read ahead the least
				tr.Position(1, number, pos, now)
				for _, w := range tr.Next(4*files, now) {
					tr.Fetched(w, Stored, fileSize, 0, now)
				}
			}
			held := map[int]bool{}
			for f := range tr.items {
				held[f] = true
			}
			next, err := plan.Epoch(number+1, files)
			if err != nil {
				if len(held) > probeEvery { // the most recently read ones
					t.Errorf("%s: %d files are held after the last epoch", plan.Kind, len(held))
				}
				continue
			}
			for pos := range leastAhead*3/4 + leastBurst*3/4 {
				if !held[next.At(1, pos)] {
					t.Errorf("%s: the file at %d of epoch %d is not fetched before it begins", plan.Kind, pos, number+1)
				}
			}
			if len(held) > 2*leastAhead+leastBurst {
				t.Errorf("%s: %d files are held between epochs", plan.Kind, len(held))
			}
		}
	}
}

// TestBudgetOfLargeFiles: wants stay within the budget, whatever the sizes of the files.
func TestBudgetOfLargeFiles(t *testing.T) {
	const budget, small, large = 64 << 20, 100 << 10, 8 << 20
	size := func(file int) int64 {
		if file%8 == 0 {
			return large
		}
		return small
	}
	for seed := range uint64(20) {
		plan := shuffled{files: 4096, ranks: 1, epochs: 1, seed: seed, known: true}
		tr := New(plan, Config{Budget: budget, Mean: small, Size: size})
		now := time.Unix(1e9, 0)
		for pos := 0; pos < 4096; pos += 256 {
			tr.Position(0, 0, pos, now)
			now = now.Add(paceOver)
			ws := tr.Next(mostWants, now)
			all := int64(0)
			for file := range tr.items {
				all += size(file)
			}
			if all > budget {
				t.Fatalf("seed %d: %d bytes are held or under way, of %d", seed, all, budget)
			}
			for _, w := range ws {
				tr.Fetched(w, Stored, size(w.File), time.Millisecond, now)
			}
		}
	}
}

// TestPositionGoesBack: a rank that restarts an epoch gets its next files, although the budget was spent on later ones.
func TestPositionGoesBack(t *testing.T) {
	plan := shuffled{files: 4096, ranks: 1, epochs: 1, known: true}
	tr := New(plan, Config{Budget: leastAhead * fileSize, Mean: fileSize})
	e, err := plan.Epoch(0, 1)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	for _, pos := range []int{0, 3000, 100} {
		tr.Position(0, 0, pos, now)
		ws := tr.Next(mostWants, now)
		if len(ws) == 0 || ws[0].File != e.At(0, pos) {
			t.Fatalf("at position %d the wants are %v, not file %d first", pos, ws, e.At(0, pos))
		}
		for _, w := range ws {
			tr.Fetched(w, Stored, fileSize, time.Millisecond, now)
		}
	}
	if s := tr.State(); s.Memory > leastAhead*fileSize || s.Ranks[0].Position != 100 {
		t.Errorf("%+v", s)
	}
}

// TestReadsGoBack: a script that restarts, or resumes from a recent checkpoint, is followed after some hundred reads.
func TestReadsGoBack(t *testing.T) {
	plan := shuffled{files: 40_000, ranks: 2, seed: 1, known: true}
	e, err := plan.Epoch(0, 2)
	if err != nil {
		t.Fatal(err)
	}
	tr, now := New(plan, Config{Budget: leastAhead * fileSize, Mean: fileSize}), time.Unix(1e9, 0)
	for _, c := range [][2]int{{0, 6500}, {0, 1000}} {
		for pos := c[0]; pos < c[1]; pos++ {
			now = now.Add(time.Millisecond)
			tr.Observe(e.At(1, pos), now)
		}
		if s := tr.State(); len(s.Ranks) != 1 || s.Ranks[0].Position != c[1] {
			t.Fatalf("after reads from %d to %d: %+v", c[0], c[1], s)
		}
	}
}

// TestPutOff: files that stay in the source are not fetched ahead while others are staged. Files of the next epoch that
// were skipped are fetched afterwards.
func TestPutOff(t *testing.T) {
	const files = 2000
	plan := shuffled{files: files, ranks: 1, seed: 2, known: true}
	filling := true
	tr := New(plan, Config{
		Budget: 1 << 30, Mean: fileSize, Filling: func() bool { return filling },
		Overflows: func(file int) bool { return file%2 == 0 }, Neighbours: func(int, func(int) bool) []int { return nil },
	})
	next, err := plan.Epoch(1, 1)
	if err != nil {
		t.Fatal(err)
	}
	now, fetched := time.Unix(1e9, 0), map[int]bool{}
	fetch := func() {
		for ws := tr.Next(mostWants, now); len(ws) > 0; ws = tr.Next(mostWants, now) {
			for _, w := range ws {
				if filling && w.File%2 == 0 {
					t.Fatalf("file %d is fetched while others are staged", w.File)
				}
				fetched[w.File] = true
				tr.Fetched(w, Stored, fileSize, time.Millisecond, now)
			}
		}
	}
	for pos := files / 2; pos < files; pos++ {
		tr.Position(0, 0, pos, now)
		fetch()
	}
	filling = false
	fetch()
	for pos := range leastAhead * 3 / 4 {
		if f := next.At(0, pos); f%2 == 0 && !fetched[f] {
			t.Errorf("the file at %d of the next epoch is not fetched before it begins", pos)
		}
	}
}

// TestStraggler: a rank has dealt out an epoch while a worker still reads its last files. If one of them is also early
// in the next epoch, its read does not move the rank there.
func TestStraggler(t *testing.T) {
	for seed := range uint64(20) {
		plan := shuffled{files: 2000, ranks: 1, seed: seed, known: true}
		tr, now := New(plan, Config{Budget: 1 << 30, Mean: fileSize}), time.Unix(1e9, 0)
		last, next := plan.order(t, 0), plan.order(t, 1)
		tr.Position(0, 0, 0, now)
		for _, f := range last[:1900] {
			now = now.Add(time.Millisecond)
			tr.Observe(f, now)
		}
		tr.Position(0, 0, 2000, now)
		for _, f := range last[1900:] {
			tr.Observe(f, now)
		}
		if s := tr.State(); s.Epoch != 1 || s.Ranks[0].Position != 0 {
			t.Fatalf("seed %d: after the last files of epoch 0: %+v", seed, s)
		}
		for _, f := range next[:100] {
			tr.Observe(f, now)
		}
		if s := tr.State(); s.Ranks[0].Position < 100-probeEvery || s.Ranks[0].Position > 100 {
			t.Fatalf("seed %d: after 100 files of epoch 1: %+v", seed, s)
		}
	}
}

// order returns the order of an epoch, for a single rank.
func (s shuffled) order(t *testing.T, epoch int) (all []int) {
	e, err := s.Epoch(epoch, 1)
	if err != nil {
		t.Fatal(err)
	}
	for pos := range e.Len(0) {
		all = append(all, e.At(0, pos))
	}
	return all
}
