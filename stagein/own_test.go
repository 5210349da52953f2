package stagein

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

func never() bool  { return false }
func always() bool { return true }

// fickle is true now and then.
func fickle(r *rand.Rand) func() bool {
	var calls atomic.Uint64
	key := r.Uint64()
	return func() bool {
		return rand.New(rand.NewPCG(key, calls.Add(1))).IntN(3) == 0
	}
}

// TestOwnRuns: of a source that is at hand nothing goes between nodes, no byte is
// read twice, and nobody looks at all names; nor is one read twice when it seems now to be
// at hand, now not.
func TestOwnRuns(t *testing.T) {
	for name, c := range map[string]struct {
		near func() bool
		sent bool
	}{
		"always":       {near: always},
		"never":        {near: never, sent: true},
		"now and then": {near: fickle(stageintest.Rand(t)), sent: true},
	} {
		archive := large(t, 300)
		want, err := stageintest.TwinTar(archive)
		if err != nil {
			t.Fatal(err)
		}
		j := runJob(archive, 3)
		j.near = c.near
		var sent atomic.Int64
		j.camp.sent = func(n int) { sent.Add(int64(n)) }
		got, err := j.run(context.Background())
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		stageintest.CheckTree(t, got, want)
		if read := j.sum.SourceBytes - j.scanned.Read; read > int64(len(archive)) {
			t.Errorf("%s: %d bytes of %d were read", name, read, len(archive))
		}
		if name == "always" && j.named > 0 {
			t.Errorf("%s: all names were looked at %d times", name, j.named)
		}
		if got := sent.Load() > 0; got != c.sent {
			t.Errorf("%s: %d bytes went between nodes", name, sent.Load())
		}
	}
}

// TestOwnOfAll: a node that is alone reads runs, though the source is at hand.
func TestOwnOfAll(t *testing.T) { checkLarge(t, 1, always, nil, 0) }

// TestProbe: whether a source is at hand is found out by a few small reads of each node.
func TestProbe(t *testing.T) {
	checkLarge(t, 4, nil, func() { time.Sleep(time.Millisecond) }, 4*probePatience)
}

// TestFar: a slow read now and then does not make a source far; more slow ones than
// quick ones do, for good.
func TestFar(t *testing.T) {
	var f far
	f.left.Store(patience)
	for range 100 {
		f.took(false)
		f.took(true)
	}
	if f.left.Load() <= 0 {
		t.Fatal("every second read was quick")
	}
	for range patience {
		f.took(false)
	}
	f.took(true)
	if n := f.left.Load(); n != 0 {
		t.Errorf("%d reads are missing after %d slow ones", n, patience)
	}
}

// TestProbeHangs: what a source does not answer at first keeps nothing else out.
func TestProbeHangs(t *testing.T) {
	const nodes = 2
	archive := large(t, 500)
	want, err := stageintest.TwinTar(archive)
	if err != nil {
		t.Fatal(err)
	}
	j := runJob(archive, nodes)
	var once sync.Once
	var reads atomic.Int64
	goOn := make(chan struct{})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	j.order = func(int) {
		once.Do(func() {
			j.fs.OnRead = func(string, int64) {
				switch n := reads.Add(1); {
				case n <= nodes: // the first of each
					select {
					case <-goOn:
					case <-ctx.Done():
					}
				case n == 5*nodes:
					close(goOn)
				}
			}
		})
	}
	got, err := j.run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stageintest.CheckTree(t, got, want)
}

// longFile is a file whose reads take long.
type longFile struct{ source.File }

func (longFile) ReadAt(p []byte, off int64) (int, error) {
	for began := time.Now(); time.Since(began) < time.Millisecond; {
	}
	return len(p), nil
}

// TestTimed: reads that take long show that a source is far.
func TestTimed(t *testing.T) {
	var f far
	f.left.Store(patience)
	for range patience {
		if n, err := (timed{longFile{}, f.took}).ReadAt(make([]byte, 1<<10), 0); n != 1<<10 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
	}
	if n := f.left.Load(); n != 0 {
		t.Errorf("%d reads are missing after %d slow ones", n, patience)
	}
}
