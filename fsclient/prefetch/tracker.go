package prefetch

import (
	"cmp"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// Order is the order of reads that a plan describes, by file number.
type Order interface {
	Files() int
	Ranks() int  // 0: unknown, it is learned from the reads
	Epochs() int // 0: unknown
	// Epoch returns the order of an epoch for a number of ranks.
	Epoch(epoch, ranks int) (Epoch, error)
}

// Epoch is the order of one epoch.
type Epoch interface {
	Len(rank int) int
	At(rank, pos int) int // a file number
	Find(file int) (rank, pos int, ok bool)
}

// Reasons shown to the user.
const (
	OtherOrder = "the script reads in another order: is set_epoch called? is the seed 0?"
	SameOrder  = "every epoch reads the same order: call sampler.set_epoch(epoch) if that is not intended"
)

const (
	probeEvery  = 8    // one position in this many is a probe
	leastAhead  = 32   // positions, if the budget allows
	mostAhead   = 4096 // positions
	leastWindow = 16   // positions around a rank's front in which its reads fit
	mostWindow  = 1024
	mostLate    = 256 // reads far behind
	joinReads   = 3   // reads of a new rank near the others, until it is followed
	lostScore   = 0.5 // share of reads that fit; below it the tracker gives up its place in the plan
	scoreWeight = 1. / 16
	cachedOrder = 7 // epochs whose order is kept
)

// timeAhead is how long before its read a file is fetched, in addition to the time of two fetches.
const timeAhead = 500 * time.Millisecond

// A file that was not staged yet is tried again after a delay that doubles.
const (
	retryDelay = 10 * time.Millisecond
	mostTries  = 8
)

// Config of a tracker.
type Config struct {
	Budget int64                // bytes fetched but not read yet
	Mean   int64                // mean size of a file in bytes
	Size   func(file int) int64 // bytes; nil: every file has the mean size
	// Neighbours returns the wanted files that are best fetched together with a file, by one request to the source. If
	// it is nil, there are none.
	Neighbours func(file int, wanted func(file int) bool) []int
	// Overflows reports whether a file stays in the source; nil if Neighbours is nil.
	Overflows func(file int) bool
	Filling   func() bool // files are still being staged; nil: never
}

// Want is a file to fetch.
type Want struct {
	File, Rank int
	Probe      bool // keep it in memory: its read must be seen
	Beacon     bool // also drop its pages, so that the read is seen although the kernel has cached the file
	// Run is equal for files that are fetched by one request.
	Run int
}

// Result is the result of a Want.
type Result uint8

// The results of fetching a file.
const (
	Stored Result = iota // in the kernel's page cache
	Kept                 // in memory
	Met                  // in memory, and a reader has waited for it
	Later                // not staged yet
	Failed               // its reader gets the error
)

// item is a want that is in flight or held.
type item struct {
	Want
	at      int // position, in the coordinates of the rank's front
	bytes   int64
	fetched bool
	stored  bool
	early   bool      // counted in Tracker.earlier
	met     bool      // it was read while in flight
	again   time.Time // time of the next attempt; zero: none
	tries   int
	// then and next are the want and the position of the file's second read, in the next epoch.
	then *Want
	next int
}

// counters of a tracker.
type counters struct {
	hits   int64 // prefetched files that were read
	misses int64 // other reads while following
	bytes  int64 // of prefetched files
}

// Tracker decides which files to fetch. It is not for concurrent use.
type Tracker struct {
	cfg   Config
	order Order
	ranks int // of the plan; 0: not known yet

	phase   accessplan.Phase
	reason  string
	current int  // the epoch that is being read
	before  int  // the epoch followed before current; -1: none
	repeat  bool // the next epoch has the same order
	score   float64
	active  map[int]*rank
	joining map[int]joiner // other ranks near the active ones

	search search
	epochs []knownEpoch // recently used epochs, newest last

	items    map[int]*item // by file
	runs     int           // wants so far; neighbours count once
	joined   bool          // neighbours were fetched together
	earlier  int           // wants before their turn in flight, without their neighbours
	held     int64         // bytes of items, including those in flight
	released []int
	took     time.Duration // moving average of a fetch
	count    counters
	cache    cacheShare
}

// joiner is a rank that may be here: its last read, and how many reads followed each other.
type joiner struct{ at, reads int }

type knownEpoch struct {
	number int
	Epoch
}

// New makes a tracker that waits for reads.
func New(o Order, cfg Config) *Tracker {
	cfg.Mean = max(cfg.Mean, 1)
	if cfg.Size == nil {
		cfg.Size = func(int) int64 { return cfg.Mean }
	}
	t := &Tracker{
		cfg: cfg, order: o, ranks: o.Ranks(), phase: accessplan.Waiting, current: -1, before: -1,
		active: make(map[int]*rank), joining: make(map[int]joiner), items: make(map[int]*item),
		search: search{before: -1},
	}
	if cfg.Budget <= 0 || o.Files() == 0 {
		t.phase = accessplan.Off
	}
	return t
}

// epoch returns the order of an epoch, or nil if the plan does not have it.
func (t *Tracker) epoch(n int) Epoch {
	if n < 0 {
		return nil
	}
	for _, k := range t.epochs {
		if k.number == n {
			return k.Epoch
		}
	}
	e, err := t.order.Epoch(n, max(t.ranks, 1))
	if err != nil {
		return nil
	}
	if len(t.epochs) >= cachedOrder {
		t.epochs = slices.Delete(t.epochs, 0, 1)
	}
	t.epochs = append(t.epochs, knownEpoch{n, e})
	return e
}

// next returns the number of the epoch after the current one, or -1 if there is none.
func (t *Tracker) next() int {
	switch n := t.order.Epochs(); {
	case t.current < 0:
		return -1
	case t.repeat:
		return t.current
	case n > 0 && t.current+1 >= n:
		return -1
	}
	return t.current + 1
}

// Observe records a read of the beginning of a file that the kernel had not cached.
func (t *Tracker) Observe(file int, now time.Time) { t.observe(file, true, now) }

// Opened records an open of a file that the kernel reads itself. It shows a rank's place, but is neither hit nor miss.
func (t *Tracker) Opened(file int, now time.Time) { t.observe(file, false, now) }

func (t *Tracker) observe(file int, read bool, now time.Time) {
	if t.phase == accessplan.Off || file < 0 || file >= t.order.Files() {
		return
	}
	t.search.add(file)
	if t.phase == accessplan.Following {
		t.follow(file, read, now)
	} else {
		t.look(now)
	}
}

// follow matches a read, or an open, with the active ranks.
func (t *Tracker) follow(file int, read bool, now time.Time) {
	it, hit := t.items[file], false
	if read {
		hit = t.consume(file)
	}
	if read && it != nil && it.Beacon && t.sighted(it, now) {
		return
	}
	if t.straggles(file) {
		if read && !hit {
			t.count.misses++
		}
		return
	}
	for lap, n := range []int{t.current, t.next()} {
		e := t.epoch(n)
		if e == nil {
			continue
		}
		id, pos, ok := e.Find(file)
		if !ok {
			continue
		}
		at, r := pos+lap*e.Len(id), t.active[id]
		if r != nil && r.fits(at) {
			if !read && r.seen(at) {
				return // its read was seen: the file was not whole yet
			}
			t.judge(1)
			if read && !hit {
				t.count.misses++
			}
			if read {
				t.sample(false)
			}
			r.read(at, false, now)
			t.advanced(r)
			return
		}
		if r == nil && t.near(at) && !t.late(file, read) {
			if !t.join(id, at, now) && read {
				t.count.misses++
			}
			return
		}
	}
	if hit {
		return // prefetched, and late
	}
	if read {
		t.count.misses++
	}
	if t.late(file, read) {
		return
	}
	t.judge(0)
	if t.score < lostScore {
		t.lose()
	}
}

func (t *Tracker) judge(fit float64) { t.score += scoreWeight * (fit - t.score) }

// join counts a read of a rank that is not active, and reports whether the rank has become active.
func (t *Tracker) join(id, at int, now time.Time) bool {
	j := t.joining[id]
	if d := at - j.at; j.reads > 0 && (d < -2*probeEvery || d > 2*probeEvery) {
		j.reads = 0
	}
	j = joiner{at, j.reads + 1}
	if t.joining[id] = j; j.reads < joinReads {
		return false
	}
	delete(t.joining, id)
	t.activate(id, at, now)
	return true
}

// advanced gives up the files that a rank has passed, ends an epoch that all ranks have read, and drops ranks that fell
// behind.
func (t *Tracker) advanced(r *rank) {
	for _, it := range r.passed() {
		if it.stored {
			t.count.hits++ // its read was not seen
		} else if it.fetched && !it.Beacon {
			t.count.hits++ // not seen either: the kernel had cached the file
			t.sample(true)
		}
		t.release(it)
	}
	for _, o := range t.active {
		if r.front-o.front > 4*max(r.window, o.window)+256 {
			t.deactivate(o)
		}
	}
	done := true
	for _, o := range t.active {
		done = done && o.front >= o.length
	}
	if done || r.front >= r.length+2*r.window {
		t.turn()
	}
}

// deactivate gives up a rank and the files fetched for it.
func (t *Tracker) deactivate(r *rank) {
	for _, it := range slices.Clone(r.items) {
		t.release(it)
	}
	delete(t.active, r.id)
}

// turn makes the next epoch the current one.
func (t *Tracker) turn() {
	n := t.next()
	if n < 0 {
		return // reads that follow fit nothing
	}
	t.before, t.current = t.current, n
	clear(t.joining)
	for _, r := range t.active {
		if r.front < r.length-2*r.window {
			t.deactivate(r)
			continue
		}
		r.turn()
		for _, it := range r.items {
			if it.then != nil {
				it.next -= r.length
			}
		}
	}
}

// Position records an exact position: the rank reads the file at pos of an epoch next.
func (t *Tracker) Position(id, epoch, pos int, now time.Time) {
	if t.phase == accessplan.Off || t.ranks == 0 || id < 0 || id >= t.ranks || epoch < 0 || pos < 0 {
		return
	}
	e := t.epoch(epoch)
	if e == nil || pos > e.Len(id) {
		return
	}
	lap := 0
	switch {
	case t.phase == accessplan.Following && epoch == t.current:
	case t.phase == accessplan.Following && epoch == t.next():
		lap = e.Len(id)
	case t.phase == accessplan.Following && epoch < t.current:
		return // late
	default:
		t.start(epoch)
	}
	t.score = 1
	r := t.active[id]
	if r == nil {
		r = t.activate(id, pos+lap, now)
	} else if at := pos + lap; at > r.front {
		r.advance(at, now)
	} else if r.front-at > r.length/2 { // the script went back: the held files are for later positions
		t.deactivate(r)
		r = t.activate(id, at, now)
	}
	t.advanced(r)
}

// start begins to follow an epoch, without ranks yet.
func (t *Tracker) start(epoch int) {
	for _, r := range t.active {
		t.deactivate(r)
	}
	clear(t.joining)
	t.current, t.before, t.phase, t.reason, t.score, t.repeat = epoch, -1, accessplan.Following, "", 1, false
}

// lose gives up the place in the plan and starts a search.
func (t *Tracker) lose() {
	before, through := t.current, false
	for _, r := range t.active {
		through = through || r.front > r.length/2
		t.deactivate(r)
	}
	if !through && t.before >= 0 {
		before, through = t.before, true // another epoch followed than the expected one
	}
	clear(t.joining)
	if t.order.Ranks() == 0 {
		t.ranks, t.epochs = 0, nil // the learned number of ranks may be wrong
	}
	t.phase = accessplan.Waiting
	t.search.begin(before, through)
}

// State returns the current state.
func (t *Tracker) State() accessplan.State {
	s := accessplan.State{
		Phase: t.phase, Reason: t.reason, Epoch: max(t.current, 0), Memory: t.held,
		Hits: t.count.hits, Misses: t.count.misses, Prefetched: t.count.bytes,
	}
	for _, r := range t.active {
		x := accessplan.RankState{Rank: r.id, Epoch: s.Epoch, Position: max(r.front, 0), Ahead: max(r.next-r.front, 0)}
		if x.Position >= r.length && t.next() >= 0 {
			x.Epoch, x.Position = t.next(), x.Position-r.length
		}
		s.Ranks = append(s.Ranks, x)
	}
	slices.SortFunc(s.Ranks, func(a, b accessplan.RankState) int { return cmp.Compare(a.Rank, b.Rank) })
	if all := s.Hits + s.Misses; all > 0 {
		s.HitRate = float64(s.Hits) / float64(all)
	}
	return s
}
