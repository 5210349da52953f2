package sources

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Source is the place of files that are read through from the source.
const Source metadata.NodeID = 0xfffe

const (
	slowFactor = 4.0  // a place is slow if it takes this many times as long as the best one
	near       = 1.25 // costs within this factor count as equal
	ownDrive   = 0.5  // share of the cost of this node's drive that counts, so that the network is spared

	firstProbe = 500 * time.Millisecond
	lastProbe  = 8 * time.Second
	failCost   = 1.0 // least seconds that a failed read counts as

	// The longest that a read waits for one place while another has the bytes, in expected times, with its bounds.
	patienceFactor = 16
	leastPatience  = 250 * time.Millisecond
	mostPatience   = 5 * time.Second

	shareMemory = 10 * time.Second // time constant of the share of reads
)

// place is the state and the measurements of one place.
type place struct {
	speed
	remote      bool // another node
	outstanding int
	moved       time.Time // last answer, or first of the outstanding reads
	failed      bool
	probeAt     time.Time // earliest time of the next probe
	interval    time.Duration

	reads, replicas, failures, bytes int64
	recent                           float64 // reads, decaying
	recentAt                         time.Time
}

// Table holds the places that one client reads from.
type Table struct {
	self metadata.NodeID
	now  func() time.Time
	rand func(n int) int

	mu     sync.Mutex
	places map[metadata.NodeID]*place // guarded by mu
	remote int                        // guarded by mu; reads outstanding at other nodes
	quiet  time.Time                  // guarded by mu; when the last of those ended
}

// New makes the table of the node self. If random is nil, the process's random numbers are used.
func New(self metadata.NodeID, now func() time.Time, random func(n int) int) *Table {
	if random == nil {
		random = rand.IntN
	}
	return &Table{self: self, now: now, rand: random, places: make(map[metadata.NodeID]*place)}
}

// Read is an outstanding read.
type Read struct {
	Place metadata.NodeID
	// Patience is how long to wait before another place is asked; 0: no bound.
	Patience time.Duration

	t     *Table
	p     *place
	began time.Time
}

// Begin chooses the place for a read of n bytes among those that have them, the owner first, and counts it as
// outstanding. The caller must call End.
func (t *Table) Begin(n int64, among []metadata.NodeID) Read {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	i, best := 0, 0.0
	if len(among) > 1 {
		i, best = t.choose(n, among, now)
	}
	p := t.place(among[i])
	if p.outstanding++; p.outstanding == 1 {
		p.moved = now
	}
	if p.remote {
		t.remote++
	}
	if i > 0 {
		p.replicas++
	}
	r := Read{Place: among[i], t: t, p: p, began: now}
	if len(among) > 1 {
		r.Patience = min(max(time.Duration(best*patienceFactor*float64(time.Second)), leastPatience), mostPatience)
	}
	return r
}

// End records that the read returned n bytes, or failed.
func (r Read) End(n int64, failed bool) {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	now, p := r.t.now(), r.p
	took := now.Sub(r.began).Seconds()
	r.ended(now)
	if failed {
		p.failures++
		p.failed = true
		p.putOff(now)
		return
	}
	p.moved = now
	p.reads++
	p.bytes += n
	p.recent = p.recent*math.Exp(-now.Sub(p.recentAt).Seconds()/shareMemory.Seconds()) + 1
	p.recentAt = now
	if expected, known := p.expect(n); p.failed || known && took < expected/2 {
		p.interval, p.probeAt = 0, now.Add(firstProbe) // it recovers: probe it soon again
	}
	p.failed = false
	p.add(n, took, now)
}

// Drop records that the read was not made, for a reason unrelated to the place.
func (r Read) Drop() {
	r.t.mu.Lock()
	defer r.t.mu.Unlock()
	r.ended(r.t.now())
}

// ended removes a read from the outstanding ones. The caller holds mu.
func (r Read) ended(now time.Time) {
	r.p.outstanding--
	if r.p.remote {
		r.t.remote--
		r.t.quiet = now
	}
}

// Idle returns how long no read from another node has been outstanding: 0 while one is.
func (t *Table) Idle() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.remote > 0 {
		return 0
	}
	return t.now().Sub(t.quiet)
}

func (t *Table) place(id metadata.NodeID) *place {
	p := t.places[id]
	if p == nil {
		p = &place{remote: id != t.self && id != Source}
		t.places[id] = p
	}
	return p
}

// option is a place that could be read from.
type option struct {
	i    int // among the candidates
	p    *place
	cost float64
}

// choose returns the index of the place to read from, and the expected time of a read at the best place.
func (t *Table) choose(n int64, among []metadata.NodeID, now time.Time) (chosen int, best float64) {
	var buf [8]option
	all, own := buf[:0], -1
	best = math.Inf(1)
	for i, id := range among {
		p := t.place(id)
		took, known := p.cost(n, now)
		if id == t.self {
			took *= ownDrive // 0 until it is known
			own = i
		}
		if known && !p.failed {
			best = min(best, took)
		}
		if !known && id != t.self {
			took = -1
		}
		all = append(all, option{i, p, took})
	}
	if math.IsInf(best, 1) {
		best = failCost / 1000 // no place is known yet
	}
	if own >= 0 && !all[own].p.failed && all[own].cost <= best {
		return own, best // the others need no probes
	}
	for i := range all {
		if all[i].cost < 0 {
			all[i].cost = best // counts as the best until it is known
		}
	}
	for _, o := range all {
		if o.p.due(now) {
			o.p.putOff(now)
			return o.i, best
		}
	}
	fast := slices.DeleteFunc(all, func(o option) bool { return o.p.failed || o.cost > slowFactor*best })
	if len(fast) == 0 {
		return t.leastBad(among), best
	}
	return t.draw(fast), best
}

// draw picks one of the options of nearly the least cost.
func (t *Table) draw(fast []option) int {
	least := math.Inf(1)
	for i := range fast {
		fast[i].cost *= float64(1 + fast[i].p.outstanding)
		least = min(least, fast[i].cost)
	}
	same := slices.DeleteFunc(fast, func(o option) bool { return o.cost > near*least })
	if len(same) == 1 {
		return same[0].i
	}
	a := t.rand(len(same))
	b := (a + 1 + t.rand(len(same)-1)) % len(same)
	if same[b].p.outstanding < same[a].p.outstanding {
		a = b
	}
	return same[a].i
}

// leastBad picks, among places that have all failed, the one whose next probe is due first.
func (t *Table) leastBad(among []metadata.NodeID) int {
	least := 0
	for i, id := range among {
		if t.place(id).probeAt.Before(t.place(among[least]).probeAt) {
			least = i
		}
	}
	return least
}

// cost returns the expected time of a read of n bytes: at least as long as the place has been silent.
func (p *place) cost(n int64, now time.Time) (seconds float64, known bool) {
	seconds, known = p.expect(n)
	if p.outstanding > 0 {
		silence := now.Sub(p.moved).Seconds()
		known = known || silence > leastPatience.Seconds()
		seconds = max(seconds, silence)
	}
	if p.failed {
		seconds, known = max(seconds, failCost), true
	}
	return seconds, known
}

// due reports whether to probe a place, because it was not read from for a while.
func (p *place) due(now time.Time) bool {
	if p.outstanding > 0 || now.Before(p.probeAt) || p.last().IsZero() && !p.failed {
		return false
	}
	return p.failed || now.Sub(p.last()) >= firstProbe
}

// putOff doubles the interval until the next probe.
func (p *place) putOff(now time.Time) {
	p.interval = min(max(2*p.interval, firstProbe), lastProbe)
	p.probeAt = now.Add(p.interval)
}
