package sources

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// world simulates, in virtual time, readers of places whose speed changes.
type world struct {
	t      *testing.T
	now    time.Duration
	rng    *rand.Rand
	events events
	tables []*Table
	took   func(id metadata.NodeID, at time.Duration, busy int) time.Duration // the duration of a read that begins now
	busy   map[metadata.NodeID]int                                            // reads in progress, by all readers
	begun  map[metadata.NodeID][]time.Duration
}

type event struct {
	at time.Duration
	do func()
}

type events []event

func (e events) Len() int           { return len(e) }
func (e events) Less(i, j int) bool { return e[i].at < e[j].at }
func (e events) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)        { *e = append(*e, x.(event)) }
func (e *events) Pop() any          { x := (*e)[len(*e)-1]; *e = (*e)[:len(*e)-1]; return x }

var start = time.Unix(1e9, 0)

// never is the duration of a read that is not answered.
const never = time.Hour

func newWorld(t *testing.T, seed uint64, clients int) *world {
	w := &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), busy: make(map[metadata.NodeID]int), begun: make(map[metadata.NodeID][]time.Duration)}
	for range clients {
		w.tables = append(w.tables, New(99, func() time.Time { return start.Add(w.now) }, w.rng.IntN))
	}
	return w
}

func (w *world) after(d time.Duration, do func()) { heap.Push(&w.events, event{w.now + d, do}) }

// reader reads for ever, with a pause after each read.
func (w *world) reader(t *Table, n int64, among []metadata.NodeID, pause time.Duration) {
	r := t.Begin(n, among)
	w.begun[r.Place] = append(w.begun[r.Place], w.now)
	w.busy[r.Place]++
	took := w.took(r.Place, w.now, w.busy[r.Place])
	failed := r.Patience > 0 && took > r.Patience
	if failed {
		took = r.Patience
	}
	w.after(took, func() {
		w.busy[r.Place]--
		r.End(n, failed)
		w.after(pause+time.Duration(w.rng.Int64N(int64(pause)+1)), func() { w.reader(t, n, among, pause) })
	})
}

func (w *world) run(until time.Duration) {
	for len(w.events) > 0 && w.events[0].at <= until {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = until
}

// reads returns how many reads of a place began in [from, to), and how many of all places.
func (w *world) reads(id metadata.NodeID, from, to time.Duration) (n, all int) {
	for p, times := range w.begun {
		for _, at := range times {
			if at >= from && at < to {
				all++
				if p == id {
					n++
				}
			}
		}
	}
	return n, all
}

// jitter returns d times a factor between a half and one and a half.
func (w *world) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(w.rng.Int64N(int64(d)))
}

const sample = 110 << 10

// TestSlowPlaceIsRelieved: with readers at random, an owner that becomes ten times as slow gets only probes within
// three seconds, and its full share within ten seconds of its recovery.
func TestSlowPlaceIsRelieved(t *testing.T) {
	for seed := range uint64(6) {
		for _, hangs := range []bool{false, true} {
			t.Run(fmt.Sprint(seed, hangs), func(t *testing.T) {
				w := newWorld(t, seed, 1)
				w.took = func(id metadata.NodeID, at time.Duration, _ int) time.Duration {
					d := time.Millisecond
					if id == 0 && at >= 5*time.Second && at < 12*time.Second {
						if d *= 10; hangs {
							return never
						}
					}
					return w.jitter(d)
				}
				for range 1 + w.rng.IntN(4) {
					w.reader(w.tables[0], sample, []metadata.NodeID{0, 1, 2}, time.Duration(2+w.rng.IntN(10))*time.Millisecond)
				}
				w.run(25 * time.Second)
				if n, all := w.reads(0, 2*time.Second, 5*time.Second); n < all/5 || n > all/2 {
					t.Errorf("%d of %d reads of an equal among three", n, all)
				}
				if n, all := w.reads(0, 8*time.Second, 12*time.Second); n > 10 || all < 200 || n == 0 {
					t.Errorf("%d of %d reads of a slow place, want from 1 to 10 probes", n, all)
				}
				if n, all := w.reads(0, 22*time.Second, 25*time.Second); n < all/5 {
					t.Errorf("%d of %d reads of a place that has recovered", n, all)
				}
			})
		}
	}
}

// TestFastestIsUsed: places differ in latency and bandwidth, and the fastest place depends on the size of the read.
func TestFastestIsUsed(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(t, seed, 1)
		const small, large = 4 << 10, 8 << 20
		size := int64(small)
		w.took = func(id metadata.NodeID, _ time.Duration, _ int) time.Duration {
			if id == 0 { // low latency, low bandwidth
				return w.jitter(100*time.Microsecond + time.Duration(size)*20)
			}
			return w.jitter(3*time.Millisecond + time.Duration(size))
		}
		among := []metadata.NodeID{0, 1}
		for i := range 400 { // one after another
			size = int64(small)
			if i%2 == 1 {
				size = large
			}
			r := w.tables[0].Begin(size, among)
			if i > 200 {
				want := metadata.NodeID(i % 2)
				w.begun[r.Place^want] = append(w.begun[r.Place^want], w.now)
			}
			w.now += w.took(r.Place, w.now, 1)
			r.End(size, false)
		}
		if right, wrong := len(w.begun[0]), len(w.begun[1]); wrong > 20 {
			t.Errorf("seed %d: %d reads of the fastest place, %d of the other", seed, right, wrong)
		}
	}
}

// TestOutlier: a single read that takes a hundred times as long has no effect.
func TestOutlier(t *testing.T) {
	w := newWorld(t, 1, 1)
	table := w.tables[0]
	read := func(took time.Duration) {
		r := table.Begin(sample, []metadata.NodeID{7})
		w.now += took
		r.End(sample, false)
		w.now += 100 * time.Millisecond
	}
	read2 := func() {
		r := table.Begin(sample, []metadata.NodeID{8})
		w.now += time.Millisecond
		r.End(sample, false)
	}
	for range 20 {
		read(time.Millisecond)
		read2()
	}
	read(100 * time.Millisecond)
	for _, s := range table.Status() {
		if s.State != Fast {
			t.Errorf("node %d is %s after one outlier", s.Place, s.State)
		}
	}
	for range 12 {
		read(100 * time.Millisecond)
	}
	if s := table.Status()[0]; s.State != Slow || s.Bandwidth > sample/0.05 {
		t.Errorf("node 7 is %s with %.0f bytes per second after many slow reads", s.State, s.Bandwidth)
	}
}

// TestNoHerd: many clients share two equal places whose reads slow each other down: neither place gets most of the
// reads at any moment.
func TestNoHerd(t *testing.T) {
	for seed := range uint64(3) {
		w := newWorld(t, seed, 16)
		w.took = func(_ metadata.NodeID, _ time.Duration, busy int) time.Duration {
			return w.jitter(time.Duration(busy) * time.Millisecond)
		}
		for _, table := range w.tables {
			w.reader(table, sample, []metadata.NodeID{0, 1}, 10*time.Millisecond)
		}
		w.run(10 * time.Second)
		for at := 2 * time.Second; at < 10*time.Second; at += time.Second {
			if n, all := w.reads(0, at, at+time.Second); n < all/4 || n > all*3/4 {
				t.Errorf("seed %d, second %v: %d of %d reads went to one of two", seed, at, n, all)
			}
		}
	}
}

// TestOutstanding: a client with many reads outstanding spreads them over equal places.
func TestOutstanding(t *testing.T) {
	w := newWorld(t, 3, 1)
	count := make(map[metadata.NodeID]int)
	for range 30 {
		count[w.tables[0].Begin(sample, []metadata.NodeID{0, 1, 2}).Place]++
	}
	for id := range metadata.NodeID(3) {
		if count[id] < 8 || count[id] > 12 {
			t.Errorf("node %d has %d of 30 outstanding reads", id, count[id])
		}
	}
}

// TestIdle: a node counts as reading from others from the beginning of such a read until none is outstanding.
func TestIdle(t *testing.T) {
	now := start
	table := New(1, func() time.Time { return now }, nil)
	pass := func(d time.Duration, want time.Duration, when string) {
		t.Helper()
		if now = now.Add(d); table.Idle() != want {
			t.Errorf("idle for %v %s, want %v", table.Idle(), when, want)
		}
	}
	a, b := table.Begin(100, []metadata.NodeID{2}), table.Begin(100, []metadata.NodeID{3})
	pass(time.Second, 0, "during two reads")
	a.End(100, false)
	pass(time.Second, 0, "during a read")
	b.Drop()
	pass(time.Second, time.Second, "after the reads")
	own, source := table.Begin(100, []metadata.NodeID{1}), table.Begin(100, []metadata.NodeID{Source})
	pass(time.Second, 2*time.Second, "during reads of the own drive and the source")
	own.End(100, false)
	source.End(100, true)
	pass(time.Second, 3*time.Second, "after these")
	c := table.Begin(100, []metadata.NodeID{2})
	c.End(0, true)
	pass(time.Second, time.Second, "after a failed read")
}

// TestOwnDrive: this node's drive is used unless it is more than twice as slow as another place.
func TestOwnDrive(t *testing.T) {
	for _, c := range []struct {
		own  time.Duration
		want bool
	}{{500 * time.Microsecond, true}, {1500 * time.Microsecond, true}, {20 * time.Millisecond, false}} {
		w := newWorld(t, 1, 1)
		w.took = func(id metadata.NodeID, _ time.Duration, _ int) time.Duration {
			if id == 99 {
				return w.jitter(c.own)
			}
			return w.jitter(time.Millisecond)
		}
		w.reader(w.tables[0], sample, []metadata.NodeID{0}, 100*time.Millisecond) // of other files
		w.reader(w.tables[0], sample, []metadata.NodeID{0, 99}, time.Millisecond)
		w.run(10 * time.Second)
		n, all := w.reads(99, 5*time.Second, 10*time.Second)
		if own := n > all/2; own != c.want {
			t.Errorf("own drive of %v a read: %d of %d reads", c.own, n, all)
		}
	}
}

// TestStatus: shares, replicas, failures.
func TestStatus(t *testing.T) {
	w := newWorld(t, 1, 1)
	table := w.tables[0]
	for range 3 {
		r := table.Begin(100, []metadata.NodeID{Source})
		w.now += time.Millisecond
		r.End(100, false)
	}
	r := table.Begin(100, []metadata.NodeID{4})
	r.End(0, true)
	table.Begin(100, []metadata.NodeID{5}).Drop()
	all := table.Status()
	if len(all) != 3 {
		t.Fatalf("%d places, want 3: %+v", len(all), all)
	}
	if s := all[0]; s.State != Failed || s.Failures != 1 || s.Reads != 0 || s.Outstanding != 0 {
		t.Errorf("node 4: %+v", s)
	}
	if s := all[1]; s.State != Idle || s.Outstanding != 0 {
		t.Errorf("node 5: %+v", s)
	}
	if s := all[2]; s.Place != Source || s.Share != 1 || s.Bytes != 300 || s.Latency < 0.0009 || s.Latency > 0.0011 {
		t.Errorf("source: %+v", s)
	}
}
