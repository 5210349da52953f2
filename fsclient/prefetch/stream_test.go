package prefetch

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// shardReaders simulates, in virtual time, workers that read large files in the order of a plan, with their streams.
type shardReaders struct {
	rand    *rand.Rand
	streams streams
	line    line
	sizes   []int64
	memory  map[pieceID]bool
	flying  map[pieceID]int // steps until the piece arrives
	asked   map[pieceID]int
	now     time.Time
	fails   bool
	jumps   bool

	read, found int64 // pieces
}

// plannedLine returns a line along a list, in every epoch.
func plannedLine(files, epochs int) line {
	p := accessplan.Plan{Dataset: "set", Kind: accessplan.List}
	return line{begun: make(map[int]bool), order: func(e int) Epoch {
		if e >= epochs {
			return nil
		}
		x, err := p.Epoch(e, files)
		if err != nil {
			return nil
		}
		return x
	}}
}

func newShardReaders(seed uint64, files, epochs int) *shardReaders {
	r := &shardReaders{
		rand: rand.New(rand.NewPCG(seed, 3)), line: plannedLine(files, epochs), memory: make(map[pieceID]bool), flying: make(map[pieceID]int),
		asked: make(map[pieceID]int), now: time.Unix(1e9, 0),
	}
	r.streams.budget = (8 + r.rand.Int64N(64)) << 20
	for range files {
		r.sizes = append(r.sizes, pieceBytes*(9+r.rand.Int64N(12))+r.rand.Int64N(pieceBytes)+1)
	}
	return r
}

// readFile reads a file in the kernel's steps, of which two may be swapped.
func (r *shardReaders) readFile(t *testing.T, file int) {
	const step = 512 << 10
	var offs []int64
	for off := int64(0); off < r.sizes[file]; off += step {
		offs = append(offs, off)
	}
	for i := 1; i < len(offs); i++ {
		if r.rand.IntN(8) == 0 {
			offs[i-1], offs[i] = offs[i], offs[i-1]
		}
	}
	for i := 0; i < len(offs); i++ {
		if r.jumps && r.rand.IntN(16) == 0 {
			i = r.rand.IntN(len(offs))
		}
		off := offs[i]
		p := pieceID{file, off / pieceBytes * pieceBytes}
		r.read++
		if r.memory[p] {
			r.found++
		} else if _, ok := r.flying[p]; ok {
			delete(r.flying, p)
			if r.streams.fetched(p, pieceBytes, Met) {
				r.found++
				r.memory[p] = true
			}
		}
		x, first := r.streams.read(file, 0, r.sizes[file], off, min(step, r.sizes[file]-off), r.now)
		if first {
			r.line.begin(file)
		}
		if next, ok := r.line.successor(file, func(f int) bool { return r.streams.find(f) != nil }); ok && x.ending() {
			r.streams.expect(next, 0, r.sizes[next], r.now)
		}
		r.engine(t)
	}
}

func (r *shardReaders) engine(t *testing.T) {
	r.now = r.now.Add(10 * time.Millisecond)
	for p, left := range r.flying {
		if r.flying[p] = left - 1; left > 0 {
			continue
		}
		delete(r.flying, p)
		res := Kept
		if r.fails && r.rand.IntN(10) == 0 {
			res = Failed
		}
		if r.streams.fetched(p, pieceBytes, res) {
			r.memory[p] = true
		}
	}
	r.dropGone()
	for len(r.flying) < requests {
		p, n, ok := r.streams.fetchNext()
		if !ok {
			break
		}
		if n <= 0 || p.off+n > r.sizes[p.number] || r.memory[p] {
			t.Fatalf("piece %+v of %d bytes, in memory %v", p, n, r.memory[p])
		}
		if _, ok := r.flying[p]; ok {
			t.Fatalf("piece %+v is asked for twice", p)
		}
		r.asked[p]++
		r.flying[p] = r.rand.IntN(4)
	}
	r.dropGone()
	if held := int64(len(r.memory)+len(r.flying)) * pieceBytes; held > r.streams.held || r.streams.held > r.streams.budget {
		t.Fatalf("%d bytes in memory or under way, %d counted, budget %d", held, r.streams.held, r.streams.budget)
	}
}

func (r *shardReaders) dropGone() {
	for _, p := range r.streams.takeGone() {
		delete(r.memory, p) // pieces in flight still arrive
	}
}

// TestStreams: for any files, budget, order of the kernel's reads, jumps and failures, memory is bounded, pieces are
// fetched about once, and most are present before they are read.
func TestStreams(t *testing.T) {
	for seed := range uint64(200) {
		r := newShardReaders(seed, 4+int(seed%5), 2)
		r.fails, r.jumps = seed%3 == 0, seed%4 == 1
		for range 2 {
			for f := range r.sizes {
				r.readFile(t, f)
			}
		}
		least := 0.75
		if r.fails || r.jumps {
			least = 0.4
		}
		if got := float64(r.found) / float64(r.read); got < least {
			t.Errorf("seed %d: %.2f of the pieces were there, budget %d MiB", seed, got, r.streams.budget>>20)
		}
		asked, pieces := 0, 0
		for _, n := range r.asked {
			asked += n
		}
		for _, n := range r.sizes {
			pieces += 2 * int((n+pieceBytes-1)/pieceBytes)
		}
		if !r.fails && !r.jumps && asked > pieces+pieces/20 {
			t.Errorf("seed %d: %d pieces were fetched of %d", seed, asked, pieces)
		}
		r.now = r.now.Add(2 * idleAfter)
		r.streams.expire(r.now)
		for range 5 {
			r.engine(t) // pieces in flight arrive
		}
		if r.streams.held != 0 || len(r.memory) != 0 {
			t.Errorf("seed %d: %d bytes and %d pieces are left", seed, r.streams.held, len(r.memory))
		}
		if t.Failed() {
			return
		}
	}
}

// TestStreamsAtRandom: little of a randomly read file is fetched ahead.
func TestStreamsAtRandom(t *testing.T) {
	var s streams
	s.budget = 64 << 20
	rng := rand.New(rand.NewPCG(1, 2))
	const size, reads = 4 << 30, 2000
	fetched := 0
	for range reads {
		s.read(0, 0, size, rng.Int64N(size/4096)*4096, 4096, time.Unix(1e9, 0))
		for _, _, ok := s.fetchNext(); ok; _, _, ok = s.fetchNext() {
			fetched++
		}
	}
	if fetched > reads/50 {
		t.Errorf("%d pieces were fetched for %d reads at random", fetched, reads)
	}
}

// TestLine: the next file of a rank is known in every epoch, for any number of workers; in another order none is
// expected.
func TestLine(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 9))
		files, ranks, workers := 4+rng.IntN(60), 1+rng.IntN(3), 1+rng.IntN(4)
		p := accessplan.Plan{Dataset: "set", Kind: accessplan.Torch, Seed: seed, Shuffle: true, Ranks: ranks}
		real := p
		wrong := seed%4 == 0 && files > 40
		if wrong {
			real.Seed += 1000
		}
		order := func(p accessplan.Plan) func(int) Epoch {
			return func(e int) Epoch {
				x, err := p.Epoch(e, files)
				if err != nil {
					return nil
				}
				return x
			}
		}
		l := line{begun: make(map[int]bool), order: order(p)}
		right, told, begun := 0, 0, 0
		expected := make(map[int]bool)
		for epoch := range 4 {
			e := order(real)(epoch)
			rank := rng.IntN(ranks)
			for pos := range e.Len(rank) {
				f := e.At(rank, pos)
				l.begin(f)
				if begun++; expected[f] {
					right++
				}
				delete(expected, f)
				if pos+1 < workers { // the other workers begin as well
					continue
				}
				after := e.At(rank, pos+1-workers)
				if next, ok := l.successor(after, func(f int) bool { return expected[f] }); ok {
					told++
					expected[next] = true
				}
			}
			clear(expected)
		}
		switch {
		case wrong && told > begun/2+8:
			t.Errorf("seed %d: %d successors of %d files in another order", seed, told, begun)
		case !wrong && ranks == 1 && right < begun*2/3-4*workers:
			t.Errorf("seed %d: %d of %d files were expected: %d files, %d workers", seed, right, begun, files, workers)
		}
	}
}
