package replicas

import (
	"context"
	"math"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/daemon/node/nodetest"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/datapath/chunkstore"
	"github.com/bivouacfs/bivouac/fsclient/sources"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

const sample = 110 << 10 // bytes

// link is a path whose transfers share its bandwidth fairly.
type link chan struct{}

const linkRate = 12_500_000 // bytes per second

func (l link) transfer(n int) time.Duration {
	begun := time.Now()
	for ; n > 0; n -= 8 << 10 {
		l <- struct{}{}
		time.Sleep(time.Second * (8 << 10) / linkRate)
		<-l
	}
	return time.Since(begun)
}

// train reads in bursts, like a loader with prefetched batches, and returns the mean duration of a read. Meanwhile
// makers copy as much as they can: made is the share that they use of the bandwidth left by reads.
func train(t *testing.T, makers int64) (read time.Duration, made float64) {
	synctest.Test(t, func(t *testing.T) {
		l, table, p := make(link, 1), sources.New(1, time.Now, nil), new(pacer)
		idle := table.Idle
		p.idle.Store(&idle)
		p.makers.Store(makers)
		ctx, cancel := context.WithCancel(t.Context())
		bytes := make(chan int, makers)
		for range makers {
			go func() {
				n := 0
				for ctx.Err() == nil {
					took := l.transfer(sample)
					n += sample
					p.observe(0, sample, took)
					_ = p.yield(ctx, took) // fails at the end
				}
				bytes <- n
			}()
		}
		begun, reads := time.Now(), 0
		for range 20 {
			for range 16 {
				r := table.Begin(sample, []metadata.NodeID{0})
				read += l.transfer(sample)
				r.End(sample, false)
				reads++
				time.Sleep(time.Millisecond)
			}
			time.Sleep(400 * time.Millisecond)
		}
		capacity := time.Since(begun).Seconds()*linkRate - float64(reads*sample)
		cancel()
		sum := 0
		for range makers {
			sum += <-bytes
		}
		read, made = read/time.Duration(reads), float64(sum)/capacity
	})
	return read, made
}

// TestPace: a read shares the link with at most two transfers of replicas, which use the rest of its bandwidth.
func TestPace(t *testing.T) {
	alone, _ := train(t, 0)
	for makers := range int64(4) {
		read, made := train(t, makers+1)
		if read > alone*7/2 {
			t.Errorf("%d makers: a read takes %v, alone %v", makers+1, read, alone)
		}
		if made < 0.85 {
			t.Errorf("%d makers take %.2f of what readers leave", makers+1, made)
		}
	}
}

// TestSlowOwner: transfers delayed by readers count as normal; those over a path that lost bandwidth are slow, until it
// recovers or has been slow for long.
func TestSlowOwner(t *testing.T) {
	p := new(pacer)
	slow := func(times int, factor time.Duration) (n int) {
		for range times {
			p.observe(1, sample, factor*time.Millisecond)
			if p.slow(1) {
				n++
			}
		}
		return n
	}
	if slow(100, 10)+slow(100, 30) > 0 {
		t.Error("a transfer that readers delay is slow")
	}
	if got := slow(50, 300); got < 50 {
		t.Errorf("%d of 50 transfers are slow over a path that was cut", got)
	}
	if p.observe(2, sample, 300*time.Millisecond); p.slow(2) {
		t.Error("the first transfer is slow")
	}
	p.observe(1, 1000, time.Millisecond)
	if !p.slow(1) {
		t.Error("a small transfer has said that the path recovered")
	}
	if slow(1, 10) > 0 {
		t.Error("a path that has recovered is slow")
	}
	if slow(1000, 300); slow(10, 300) > 0 {
		t.Error("a path that is slow for good is not learnt")
	}
}

// TestPaceOfSizes: a transfer is compared with those of its size, since small ones are slow per byte on any path.
func TestPaceOfSizes(t *testing.T) {
	p := new(pacer)
	for range 100 {
		for _, n := range []int{1 << 20, measured, 64 << 10} {
			p.observe(1, n, time.Millisecond+time.Duration(n)) // latency of a millisecond, plus a GB/s
			if p.slow(1) {
				t.Fatalf("a transfer of %d bytes is slow, and took as long as ever", n)
			}
		}
	}
	if p.observe(1, 1<<20, 80*time.Millisecond); !p.slow(1) {
		t.Error("a transfer that takes forty times as long is not slow")
	}
	if p.observe(1, 1<<20, 40*time.Millisecond); p.slow(1) {
		t.Error("a transfer that waited for a processor is slow")
	}
}

// owner is a node that has all files; each takes a given time, or is never answered if that time is negative.
type owner struct {
	holder
	took *time.Duration
}

func (o owner) ReadIfPresent(ctx context.Context, ino metadata.Ino, p []byte, off int64) (int, error) {
	if *o.took < 0 {
		return 0, syscall.EHOSTUNREACH
	}
	time.Sleep(*o.took)
	return o.holder.ReadIfPresent(ctx, ino, p, off)
}

// slowable returns a set of n files whose owners, nodes 0, 2 and 3, take as long as took says.
func slowable(t *testing.T, n int, size int64) (r *Replicas, s *set, took map[metadata.NodeID]*time.Duration) {
	t.Helper()
	store, err := chunkstore.Open(chunkstore.Config{Dirs: []string{t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() }) // of a test
	body, here := make([]byte, size), nodetest.New(t, 1, 4)
	took = make(map[metadata.NodeID]*time.Duration)
	for _, id := range []metadata.NodeID{0, 2, 3} {
		took[id] = new(time.Millisecond)
	}
	r = New(Config{
		Node: here, Store: store, Write: store.WriteAt, Stored: nothing, Coming: nothing,
		Of: func(id metadata.NodeID) datapath.Store { return owner{holder{body: body}, took[id]} },
	})
	s = &set{id: 1, m: here.View().Map, n: 3, ceiling: math.MaxUint64, striped: make(map[metadata.Ino]*stripes), away: make(owners), self: 1}
	sum := stagein.NewSummer()
	_, _ = sum.Write(body) // never fails
	var files fakeTable
	for i := range n {
		a := metadata.Attr{Ino: metadata.SealedIno(1, 0, uint32(i+1)), Size: size, Layout: metadata.Layout{Kind: metadata.Local, Node: []metadata.NodeID{0, 2, 3}[i%3]}}
		files = append(files, a)
		s.add(fill.PieceID{Ino: a.Ino}, a.Size, a.Layout.Node)
	}
	s.sort()
	for i := range s.files {
		s.files[i].sum = sum.Sum()
	}
	s.table, r.sets[1] = files, s
	return r, s, took
}

// TestSmallFilesOfASlowOwner: small files do not show whether the path has recovered, so their replicas are still made.
func TestSmallFilesOfASlowOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, s, _ := slowable(t, 300, measured/2)
		r.pace.observe(3, measured, time.Millisecond)
		if r.pace.observe(3, measured, 100*time.Millisecond); !r.pace.slow(3) {
			t.Fatal("the owner is not slow")
		}
		if err := r.makeAll(t.Context(), s); err != nil || s.missed > 0 {
			t.Errorf("%d of 300 are missed, %v", s.missed, err)
		}
	})
}

// TestOwnerDoesNotAnswer: replicas of other owners' files are made in the pass that finds the owner unreachable, and in
// later ones that cannot get its checksums.
func TestOwnerDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		r, s, took := slowable(t, n, measured)
		*took[3] = -1
		r.cfg.Sums = func(_ context.Context, _ metadata.DatasetID, from metadata.NodeID, _ func(fill.PieceID, [16]byte)) error {
			if *took[from] < 0 {
				return syscall.EHOSTUNREACH
			}
			return nil
		}
		pass := func(want int) {
			t.Helper()
			if err := r.makeAll(t.Context(), s); err != nil || s.have.files != int64(want) || s.missed != n-want {
				t.Errorf("%d of %d replicas made, %d missed, %v; want %d", s.have.files, n, s.missed, err, want)
			}
		}
		again := func() {
			t.Helper()
			if _, err := r.prepare(t.Context(), cluster.Dataset{ID: 1}, s.m); err != nil {
				t.Errorf("a pass cannot begin: %v", err)
			}
		}
		pass(n * 2 / 3)
		again()
		pass(n * 2 / 3)
		*took[3] = time.Millisecond
		again()
		pass(n)
	})
}

// TestSlowOwnerIsLeftAlone: when the link of an owner loses bandwidth, replicas of other owners' files are made first.
// Those of the slow one follow after its recovery.
func TestSlowOwnerIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 300
		r, s, took := slowable(t, n, measured)
		have := func() (all map[metadata.NodeID]int) {
			all = make(map[metadata.NodeID]int)
			for _, f := range s.files {
				if f.state == present {
					all[f.owner]++
				}
			}
			return all
		}
		batch, _ := r.batch(s)
		if err := r.makeBatch(t.Context(), s, batch); err != nil {
			t.Fatal(err)
		}
		before := have()
		if s.missed > 0 || before[0]+before[2]+before[3] != batchFiles {
			t.Fatalf("made %v, %d missed", before, s.missed)
		}
		*took[3] = 100 * time.Millisecond
		begun := time.Now()
		if err := r.makeAll(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		got := have()
		if got[0]+got[2] != n*2/3 || s.missed != n/3-got[3] {
			t.Errorf("made %v, %d missed, while the link of node 3 is cut", got, s.missed)
		}
		if slow := got[3] - before[3]; slow > 4 || time.Since(begun) > time.Second {
			t.Errorf("made %d from the slow owner, in %v", slow, time.Since(begun))
		}
		*took[3], s.made, s.missed = time.Millisecond, 0, 0
		if err := r.makeAll(t.Context(), s); err != nil || have()[3] != n/3 || s.missed > 0 {
			t.Errorf("made %v, %d missed, %v, after the link has recovered", have(), s.missed, err)
		}
	})
}
