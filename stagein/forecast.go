package stagein

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Forecast tells which files of a dataset the readers of this node read next, while it is filled in the
// order in which they do. That is what a training program's sampler gives (Dryden et al., "Clairvoyant
// Prefetching for Distributed Machine Learning I/O", SC'21): of the files in the order of the epoch each
// rank reads every n-th, n being the number of ranks, which is learned from what is read.
//
// Who reads ahead gives the kernel the files, so that nobody hears any more when they are read. So of the
// steps of a reader one in leftAlone is left out: the reader reads it by itself, and is seen there.
type Forecast struct {
	here  func(piece) bool
	yield func(time.Duration) // leaves the source to other nodes for so long
	more  chan struct{}       // has something when due may have

	mu     sync.Mutex
	epoch  *epoch    // guarded by mu; nil is that nothing is told
	rest   []piece   // guarded by mu; what this node fetches in the order of the fill, from the first that is not here on
	stride int       // guarded by mu; from a reader's turn to its next; 0 is that it is not known
	trust  int       // guarded by mu; rises when a reader is where it was expected, and falls when it is not
	hits   strides   // guarded by mu; from which the stride is learned
	known  []uint64  // guarded by mu; a bit for each turn that was read, told or left out
	due    []int     // guarded by mu; turns that are to be told, in their order
	over   bool      // guarded by mu; a reader came to the end
	late   time.Time // guarded by mu; nothing is told before
}

const (
	leftAlone  = 8                      // of so many steps of a reader one is not told
	stepsAhead = 2 * leftAlone          // that are told: two rounds of that
	mostDue    = 4096                   // turns
	mostTurns  = 2 << 20                // files of a dataset of which something is told: 12 bytes each
	longWait   = 10 * time.Millisecond  // for a file that is somewhere in the job it is not so long
	turnsAhead = 32                     // of this node, that others have not come so far
	yieldTime  = 100 * time.Millisecond // after a reader has waited
	fullTrust  = 16                     // in a stride
	dueAgain   = 10 * time.Millisecond  // after which it is looked whether what is due is here
)

// errNoMore says that nothing will be told any more.
var errNoMore = errors.New("the epoch was told")

// foretold reports whether readers may be expected to read in the order of the fill.
func (o Order) foretold() bool { return o.Kind == OrderSeed || o.Kind == OrderList }

func newForecast(here func(piece) bool, yield func(time.Duration)) *Forecast {
	return &Forecast{here: here, yield: yield, more: make(chan struct{}, 1)}
}

// begin says what the order of the files is, and what this node fetches in it. When a node was lost it comes again.
func (f *Forecast) begin(e *epoch, rest []piece) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest = rest
	if f.epoch == nil && !f.over && len(e.order) > 0 {
		f.epoch, f.known = e, make([]uint64, (len(e.order)+63)/64)
	}
}

// whole says that all that this node fetches is here.
func (f *Forecast) whole() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rest = nil
	f.wake()
}

// Waited takes note that a reader has waited so long for a file. If this node is ahead of that, another has not
// come so far, and is to have the source.
func (f *Forecast) Waited(ino metadata.Ino, took time.Duration) {
	if took < longWait {
		return
	}
	f.mu.Lock()
	t, ok := f.epoch.turn(ino)
	ahead := ok && len(f.rest) > 0 && f.fetched() > t+turnsAhead
	f.mu.Unlock()
	if ahead {
		f.yield(yieldTime)
	}
}

// Read takes note that somebody begins to read a file, which was not told or comes sooner.
func (f *Forecast) Read(ino metadata.Ino) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.epoch.turn(ino)
	if !ok || f.over {
		return
	}
	expected := f.has(t)
	f.set(t)
	switch {
	case f.stride == 0:
		f.stride, f.trust = f.hits.learn(t), fullTrust/2
	case expected:
		f.trust = min(f.trust+1, fullTrust)
	default:
		f.trust--
	}
	switch {
	case f.trust == 0:
		f.stride, f.hits, f.due = 0, strides{}, nil
	case f.stride > 0:
		f.tell(t)
	}
}

// tell has the next steps of who is at turn t told, but for those that were; mu is held.
func (f *Forecast) tell(t int) {
	f.due = slices.DeleteFunc(f.due, func(d int) bool { return d <= t && (t-d)%f.stride == 0 }) // it is past them
	for d := t + f.stride; d <= t+stepsAhead*f.stride; d += f.stride {
		if d >= len(f.epoch.order) {
			f.over = f.trust > fullTrust/2
			break
		}
		if f.has(d) {
			continue
		}
		f.set(d)
		if d/f.stride%leftAlone != 0 && f.epoch.order[d] != 0 && len(f.due) < mostDue {
			f.due = append(f.due, d)
		}
	}
	slices.Sort(f.due)
	f.wake()
}

func (f *Forecast) wake() {
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// has reports whether a turn is known; mu is held.
func (f *Forecast) has(t int) bool { return f.known[t/64]>>(t%64)&1 != 0 }

// set makes a turn known; mu is held.
func (f *Forecast) set(t int) { f.known[t/64] |= 1 << (t % 64) }

// Next is a file that is read soon, and can be: this node has all of its own that comes before. It waits until
// there is one. An error is that ctx ends, or that there will be no more.
func (f *Forecast) Next(ctx context.Context) (metadata.Ino, error) {
	for {
		ino, again, err := f.next()
		if ino != 0 || err != nil {
			return ino, err
		}
		var late <-chan time.Time
		if again {
			late = time.After(dueAgain)
		}
		select {
		case <-f.more:
		case <-late:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// next is 0 if nothing can be told now; again says that something may be without a further read.
func (f *Forecast) next() (ino metadata.Ino, again bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(f.due) == 0 && f.over:
		f.epoch, f.known, f.rest = nil, nil, nil
		f.wake() // others who wait
		return 0, false, errNoMore
	case len(f.due) == 0:
		return 0, false, nil
	case time.Now().Before(f.late) || f.due[0] > f.fetched():
		return 0, true, nil
	}
	ino = f.epoch.order[f.due[0]]
	if f.due = f.due[1:]; len(f.due) > 0 {
		f.wake()
	}
	return ino, false, nil
}

// Later has a file told again that is not where it is to be yet.
func (f *Forecast) Later(ino metadata.Ino) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.epoch.turn(ino)
	if !ok || f.stride == 0 {
		return
	}
	f.due = append(f.due, t)
	slices.Sort(f.due)
	f.late = time.Now().Add(dueAgain)
	f.wake()
}

// fetched is the turn up to which all that this node fetches is here; mu is held. What others fetch is about as far.
func (f *Forecast) fetched() int {
	for ; len(f.rest) > 0; f.rest = f.rest[1:] {
		if f.here(f.rest[0]) {
			continue
		}
		if t, ok := f.epoch.turn(f.rest[0].ino); ok {
			return t
		}
		break // it comes after the epoch
	}
	return len(f.epoch.order)
}

// epoch is the order in which the files of a dataset are read.
type epoch struct {
	order []metadata.Ino      // by turn; 0 is that there is none
	turns map[uint16][]uint32 // by the part of an inode and its number there; one more than the turn
	large bool                // there are too many
}

func newEpoch() *epoch { return &epoch{turns: make(map[uint16][]uint32)} }

// add says when a file is read.
func (e *epoch) add(ino metadata.Ino, turn uint64) {
	seq, part := uint64(ino.Seq()), ino.Part()
	switch {
	case turn >= afterList || e.large: // there is no telling when
		return
	case turn >= mostTurns || seq >= mostTurns:
		*e = epoch{large: true}
		return
	}
	if n := int(turn) + 1 - len(e.order); n > 0 {
		e.order = append(e.order, make([]metadata.Ino, n)...)
	}
	if n := int(seq) + 1 - len(e.turns[part]); n > 0 {
		e.turns[part] = append(e.turns[part], make([]uint32, n)...)
	}
	if at := &e.turns[part][seq]; *at == 0 || uint64(*at) > turn+1 { // else it is another name of the file
		*at = uint32(turn) + 1
	}
	e.order[turn] = ino
}

// turn is when a file is read, if that is known.
func (e *epoch) turn(ino metadata.Ino) (int, bool) {
	if e == nil {
		return 0, false
	}
	of := e.turns[ino.Part()]
	if seq := int(ino.Seq()); seq < len(of) && of[seq] > 0 {
		return int(of[seq]) - 1, true
	}
	return 0, false
}

// strides learns the distance of a reader's turns from those of all readers of a node: the shortest at which most
// of what is read has something before it that was.
type strides struct {
	recent []int       // turns, of which the next takes the place of recent[n%mostRecent]
	n      int         // reads since it began to learn
	votes  map[int]int // of those for a distance
	idle   int         // reads that are left out: nothing could be learned from those before
}

const (
	mostRecent = 64
	fewReads   = 16   // a power of two, as manyReads; of which nothing is learned yet
	manyReads  = 256  // of which something is, or readers follow another order
	learnPause = 1024 // reads, after which it is tried again
)

// learn is the stride after a read at turn t; 0 if it is not known.
func (s *strides) learn(t int) int {
	if s.idle > 0 {
		s.idle--
		return 0
	}
	if s.votes == nil {
		s.votes = make(map[int]int)
	}
	for _, r := range s.recent {
		if r < t {
			s.votes[t-r]++
		}
	}
	if len(s.recent) < mostRecent {
		s.recent = append(s.recent, t)
	} else {
		s.recent[s.n%mostRecent] = t
	}
	if s.n++; s.n < fewReads || s.n&(s.n-1) != 0 { // not each time
		return 0
	}
	least := 0
	for d, n := range s.votes {
		if n*5 >= s.n*4 && (least == 0 || d < least) {
			least = d
		}
	}
	if least == 0 && s.n == manyReads {
		*s = strides{idle: learnPause}
	}
	return least
}
