package fill

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// turnIno is the file that is read at a turn of shuffled.
func turnIno(perm []int, turn int) metadata.Ino { return metadata.SealedIno(3, 0, uint32(perm[turn])) }

// shuffled is a forecast of n files that are read in the order perm, of which all are here that fetched says.
func shuffled(n int, here func(PieceID) bool, rest []PieceID) (f *Predictor, perm []int) {
	perm = rand.New(rand.NewPCG(1, 2)).Perm(n)
	e := newEpoch()
	for turn := range perm {
		e.add(turnIno(perm, turn), uint64(turn))
	}
	f = newPredictor(here, func(time.Duration) {})
	f.Begin(e, rest)
	return f, perm
}

// kernel is the pages of one that reads through a forecast.
type kernel struct {
	f     *Predictor
	has   map[metadata.Ino]bool
	told  []metadata.Ino
	reads int // that it has asked for
}

func (k *kernel) read(ino metadata.Ino) {
	if !k.has[ino] {
		k.reads++
		k.f.Observe(ino)
		k.has[ino] = true
	}
	for {
		ino, _, err := k.f.next()
		if ino == 0 || err != nil {
			return
		}
		k.told = append(k.told, ino)
		k.has[ino] = true
	}
}

// TestForecast: what the ranks of a node read is told before they do, in whatever manner they share the epoch.
func TestForecast(t *testing.T) {
	const n = 20_000
	every := func(world int, ranks ...int) (turns []int) {
		for t := 0; t < n; t += world {
			for _, r := range ranks {
				if t+r < n {
					turns = append(turns, t+r)
				}
			}
		}
		return turns
	}
	batches := func(world, rank, size, workers int) (turns []int) { // as PyTorch's DataLoader does
		for first := 0; first < n; first += size * workers * world {
			for i := range size {
				for w := range workers {
					if t := first + (w*size+i)*world + rank; t < n {
						turns = append(turns, t)
					}
				}
			}
		}
		return turns
	}
	for _, tt := range []struct {
		name  string
		turns []int
		most  float64 // of what is read, that the kernel asks for
	}{
		{"one rank of four", every(4, 2), 0.14},
		{"the only one", every(1, 0), 0.13},
		{"four ranks of 16", every(16, 4, 5, 6, 7), 0.15},
		{"one of a thousand", every(1000, 999), 1}, // it reads twenty
		{"one of a hundred", every(100, 99), 0.25},
		{"batches of 32 by 4 workers", batches(4, 1, 32, 4), 0.17},
		{"batches of 64 by 2 workers, of 8 ranks", batches(8, 7, 64, 2), 0.17},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, perm := shuffled(n, func(PieceID) bool { return true }, nil)
			k := kernel{f: f, has: map[metadata.Ino]bool{}}
			mine := map[metadata.Ino]bool{}
			for _, turn := range tt.turns {
				mine[turnIno(perm, turn)] = true
				k.read(turnIno(perm, turn))
			}
			if most := tt.most * float64(len(tt.turns)); float64(k.reads) > most {
				t.Errorf("of %d files %d are read that nobody was told of, want at most %.0f", len(tt.turns), k.reads, most)
			}
			once := map[metadata.Ino]bool{}
			for _, ino := range k.told {
				if !mine[ino] || once[ino] {
					t.Fatalf("%v is told again, or read by nobody here", ino)
				}
				once[ino] = true
			}
		})
	}
}

// TestForecastOfOthers: of who reads in another order little is told that nobody reads, and who comes to read in the
// order is told of then.
func TestForecastOfOthers(t *testing.T) {
	const n = 50_000
	f, perm := shuffled(n, func(PieceID) bool { return true }, nil)
	k := kernel{f: f, has: map[metadata.Ino]bool{}}
	r := rand.New(rand.NewPCG(3, 4))
	for range 10_000 {
		k.read(turnIno(perm, r.IntN(n)))
	}
	if len(k.told) > 100 {
		t.Errorf("%d files are told to who reads at random", len(k.told))
	}
	k = kernel{f: f, has: map[metadata.Ino]bool{}}
	for turn := 1; turn < n/2; turn += 2 {
		k.read(turnIno(perm, turn))
	}
	if float64(len(k.told)) < 0.6*n/4 {
		t.Errorf("%d of %d files are told to who reads in the order at last", len(k.told), n/4)
	}
	told := len(k.told)
	for range 2000 {
		k.read(turnIno(perm, n/2+r.IntN(n/2)))
	}
	if n := len(k.told) - told; n > 500 {
		t.Errorf("%d files are told to who does no more", n)
	}
}

// TestForecastOfWhatIsHere: nothing is told that comes after what this node has yet to fetch, and what cannot be had is
// told again.
func TestForecastOfWhatIsHere(t *testing.T) {
	const n, world = 4000, 4
	have := newPieceSet()
	f, perm := shuffled(n, have.has, nil)
	for turn := 0; turn < n; turn += 3 { // what this node fetches
		f.unfetched = append(f.unfetched, PieceID{Ino: turnIno(perm, turn)})
	}
	at := 0
	for ; at < 64*world; at += world {
		f.Observe(turnIno(perm, at))
	}
	if ino, again, err := f.next(); ino != 0 || !again || err != nil {
		t.Fatalf("%v, %v, %v is told although nothing is here", ino, again, err)
	}
	next := at - world // the last one that was read
	for _, p := range f.unfetched[:(at+8*world)/3] {
		have.add(p)
	}
	var told []int
	for {
		ino, _, err := f.next()
		if err != nil {
			t.Fatal(err)
		}
		if ino == 0 {
			break
		}
		turn, _ := f.epoch.turn(ino)
		told = append(told, turn)
	}
	if len(told) < 5 || !slices.IsSorted(told) || told[0] <= next || told[len(told)-1] > at+8*world {
		t.Fatalf("the turns %v are told, want those after %d up to %d", told, next, at+8*world)
	}
	again := turnIno(perm, told[0])
	f.Retry(again)
	if ino, _, _ := f.next(); ino != 0 {
		t.Errorf("%v is told at once", ino)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if ino, err := f.Next(ctx); ino != again || err != nil {
		t.Errorf("Next = %v, %v, want %v", ino, err, again)
	}
	cancel()
	if ino, err := f.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Next = %v, %v", ino, err)
	}
}

// TestForecastEnds: when a rank comes to the end of the epoch nothing more is told, to nobody who waits, and what
// was known is forgotten.
func TestForecastEnds(t *testing.T) {
	const n = 2000
	f, perm := shuffled(n, func(PieceID) bool { return true }, nil)
	ended := make(chan error, 3)
	told := make(chan metadata.Ino, n)
	for range cap(ended) {
		go func() {
			for {
				ino, err := f.Next(t.Context())
				if err != nil {
					ended <- err
					return
				}
				told <- ino
			}
		}()
	}
	for turn := range n {
		f.Observe(turnIno(perm, turn))
	}
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, ErrDone) {
			t.Error(err)
		}
	}
	f.Observe(turnIno(perm, 5))
	f.Retry(turnIno(perm, 6))
	f.Waited(turnIno(perm, 5), time.Second)
	f.Begin(newEpoch(), nil)
	if f.epoch != nil || f.known != nil {
		t.Error("the order is still in memory")
	}
}

// TestForecastYields: when a reader waits for a file, a node that is far beyond that leaves the source to others.
func TestForecastYields(t *testing.T) {
	const n = 1000
	have := newPieceSet()
	f, perm := shuffled(n, have.has, nil)
	yielded := 0
	f.yield = func(time.Duration) { yielded++ }
	for turn := range n {
		f.unfetched = append(f.unfetched, PieceID{Ino: turnIno(perm, turn)})
		if turn < 500 {
			have.add(f.unfetched[turn])
		}
	}
	for _, tt := range []struct {
		turn int
		took time.Duration
		want int
	}{{100, longWait, 1}, {100, longWait / 2, 0}, {490, time.Second, 0}, {900, time.Second, 0}} {
		yielded = 0
		f.Waited(turnIno(perm, tt.turn), tt.took)
		if yielded != tt.want {
			t.Errorf("after %v for turn %d of 500 that are here it yields %d times, want %d", tt.took, tt.turn, yielded, tt.want)
		}
	}
}

// TestEpochs: which datasets have a forecast.
func TestEpochs(t *testing.T) {
	for _, tt := range []struct {
		order  string
		spills bool
		want   bool
	}{{"seed:5", false, true}, {"list:/l", false, true}, {"source", false, false}, {"shuffled", false, false}, {"seed:5", true, false}} {
		files := &stageintest.MemFiles{}
		o, err := stagein.ParseOrder(tt.order)
		if err != nil {
			t.Fatal(err)
		}
		f, err := New(Config{Files: files, Origins: stagein.Origins{Order: o, HasOverflow: tt.spills}, Journal: t.TempDir() + "/j", Log: stageintest.QuietLog()})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Predictor() != nil; got != tt.want {
			t.Errorf("order=%s, spills %v: a forecast %v", tt.order, tt.spills, got)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	e := newEpoch()
	e.add(metadata.SealedIno(3, 0, 1), 5)
	e.add(metadata.SealedIno(3, 0, 1), 2) // another name
	e.add(metadata.SealedIno(3, 0, 2), afterList)
	if turn, ok := e.turn(metadata.SealedIno(3, 0, 1)); turn != 2 || !ok || len(e.order) != 6 {
		t.Errorf("turn %d, %v, of %d", turn, ok, len(e.order))
	}
	if _, ok := e.turn(metadata.SealedIno(3, 0, 2)); ok {
		t.Error("what is in no list has a turn")
	}
	e.add(metadata.SealedIno(3, 0, 3), maxFiles)
	e.add(metadata.SealedIno(3, 0, 4), 1)
	if len(e.order) != 0 || !e.large {
		t.Error("too many files are known")
	}
}
