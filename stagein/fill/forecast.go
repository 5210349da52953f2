package fill

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// Predictor predicts which files the readers of this node read next, while the dataset is filled in the same order. A
// training program's sampler has one (Dryden et al., "Clairvoyant Prefetching for Distributed Machine Learning I/O",
// SC'21): each rank reads every n-th file of the epoch's order, n being the number of ranks. The predictor learns n, the
// stride, from the reads.
//
// A prefetched file is read from the kernel's page cache, so the daemon does not see the read. Therefore one in sampleEvery
// steps of a reader is not prefetched: its read shows where the reader is.
type Predictor struct {
	stored func(PieceID) bool
	yield  func(time.Duration) // leaves the source to other nodes for so long
	more   chan struct{}       // has a token when pending may have grown

	mu         sync.Mutex
	epoch      *epoch         // guarded by mu; nil: no predictions
	unfetched  []PieceID      // guarded by mu; this node's pieces in the order of the fill, from the first missing one on
	stride     int            // guarded by mu; from a reader's turn to its next one; 0 if not known yet
	confidence int            // guarded by mu; rises when a reader is where it was expected, and falls when it is not
	detector   strideDetector // guarded by mu; from which the stride is learned
	known      []uint64       // guarded by mu; a bit for each turn that was read, predicted or left out
	pending    []int          // guarded by mu; turns to predict, in order
	done       bool           // guarded by mu; a reader came to the end
	notBefore  time.Time      // guarded by mu; no prediction before then
}

const (
	sampleEvery   = 8                      // one in so many steps of a reader is not predicted
	stepsAhead    = 2 * sampleEvery        // predicted: two rounds
	maxPending    = 4096                   // turns
	maxFiles      = 2 << 20                // largest dataset with predictions: 12 bytes a file
	longWait      = 10 * time.Millisecond  // longer than the fetch of a file that some node has
	farAheadOf    = 32                     // turns; then other nodes get the source
	backOffTime   = 100 * time.Millisecond // for which the source is left to others
	maxConfidence = 16                     // in a stride
	retryDelay    = 10 * time.Millisecond  // until pending files are looked at again
)

// ErrDone ends the predictions of an epoch.
var ErrDone = errors.New("the epoch was told")

func newPredictor(here func(PieceID) bool, yield func(time.Duration)) *Predictor {
	return &Predictor{stored: here, yield: yield, more: make(chan struct{}, 1)}
}

// Begin sets the order of the files, and the pieces that this node fetches in it. It is called again after a node is lost.
func (f *Predictor) Begin(e *epoch, rest []PieceID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unfetched = rest
	if f.epoch == nil && !f.done && len(e.order) > 0 {
		f.epoch, f.known = e, make([]uint64, (len(e.order)+63)/64)
	}
}

// Complete says that everything that this node fetches is here.
func (f *Predictor) Complete() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unfetched = nil
	f.wake()
}

// Waited records how long a reader waited for a file. If this node's fill is ahead of that file, another node's is behind, and
// gets the source for a moment.
func (f *Predictor) Waited(ino metadata.Ino, took time.Duration) {
	if took < longWait {
		return
	}
	f.mu.Lock()
	t, ok := f.epoch.turn(ino)
	ahead := ok && len(f.unfetched) > 0 && f.fetched() > t+farAheadOf
	f.mu.Unlock()
	if ahead {
		f.yield(backOffTime)
	}
}

// Observe records a read of a file that was not prefetched, or not yet.
func (f *Predictor) Observe(ino metadata.Ino) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.epoch.turn(ino)
	if !ok || f.done {
		return
	}
	expected := f.has(t)
	f.set(t)
	switch {
	case f.stride == 0:
		f.stride, f.confidence = f.detector.learn(t), maxConfidence/2
	case expected:
		f.confidence = min(f.confidence+1, maxConfidence)
	default:
		f.confidence--
	}
	switch {
	case f.confidence == 0:
		f.stride, f.detector, f.pending = 0, strideDetector{}, nil
	case f.stride > 0:
		f.predict(t)
	}
}

// predict queues the next steps of the reader at turn t that were not queued before; mu is held.
func (f *Predictor) predict(t int) {
	f.pending = slices.DeleteFunc(f.pending, func(d int) bool { return d <= t && (t-d)%f.stride == 0 }) // it is past them
	for d := t + f.stride; d <= t+stepsAhead*f.stride; d += f.stride {
		if d >= len(f.epoch.order) {
			f.done = f.confidence > maxConfidence/2
			break
		}
		if f.has(d) {
			continue
		}
		f.set(d)
		if d/f.stride%sampleEvery != 0 && f.epoch.order[d] != 0 && len(f.pending) < maxPending {
			f.pending = append(f.pending, d)
		}
	}
	slices.Sort(f.pending)
	f.wake()
}

func (f *Predictor) wake() {
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// has reports whether a turn is known; mu is held.
func (f *Predictor) has(t int) bool { return f.known[t/64]>>(t%64)&1 != 0 }

// set makes a turn known; mu is held.
func (f *Predictor) set(t int) { f.known[t/64] |= 1 << (t % 64) }

// Next is a file that is read soon, and can be: this node has all of its own that comes before. It waits until
// there is one. An error is that ctx ends, or that there will be no more.
func (f *Predictor) Next(ctx context.Context) (metadata.Ino, error) {
	for {
		ino, again, err := f.next()
		if ino != 0 || err != nil {
			return ino, err
		}
		var late <-chan time.Time
		if again {
			late = time.After(retryDelay)
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
func (f *Predictor) next() (ino metadata.Ino, again bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(f.pending) == 0 && f.done:
		f.epoch, f.known, f.unfetched = nil, nil, nil
		f.wake() // others who wait
		return 0, false, ErrDone
	case len(f.pending) == 0:
		return 0, false, nil
	case time.Now().Before(f.notBefore) || f.pending[0] > f.fetched():
		return 0, true, nil
	}
	ino = f.epoch.order[f.pending[0]]
	if f.pending = f.pending[1:]; len(f.pending) > 0 {
		f.wake()
	}
	return ino, false, nil
}

// Later has a file told again that is not where it is to be yet.
func (f *Predictor) Retry(ino metadata.Ino) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.epoch.turn(ino)
	if !ok || f.stride == 0 {
		return
	}
	f.pending = append(f.pending, t)
	slices.Sort(f.pending)
	f.notBefore = time.Now().Add(retryDelay)
	f.wake()
}

// fetched is the turn up to which all that this node fetches is here; mu is held. What others fetch is about as far.
func (f *Predictor) fetched() int {
	for ; len(f.unfetched) > 0; f.unfetched = f.unfetched[1:] {
		if f.stored(f.unfetched[0]) {
			continue
		}
		if t, ok := f.epoch.turn(f.unfetched[0].Ino); ok {
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
	case turn >= maxFiles || seq >= maxFiles:
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

// strideDetector learns the distance between two reads of one rank from the reads of all ranks of a node: the shortest
// distance at which most reads follow another one.
type strideDetector struct {
	recent []int       // turns, of which the next takes the place of recent[n%mostRecent]
	n      int         // reads since it began to learn
	votes  map[int]int // of those for a distance
	idle   int         // reads that are left out: nothing could be learned from those before
}

const (
	recentReads = 64
	minReads    = 16   // a power of two, as manyReads; of which nothing is learned yet
	maxReads    = 256  // of which something is, or readers follow another order
	learnPause  = 1024 // reads, after which it is tried again
)

// learn is the stride after a read at turn t; 0 if it is not known.
func (s *strideDetector) learn(t int) int {
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
	if len(s.recent) < recentReads {
		s.recent = append(s.recent, t)
	} else {
		s.recent[s.n%recentReads] = t
	}
	if s.n++; s.n < minReads || s.n&(s.n-1) != 0 { // not each time
		return 0
	}
	least := 0
	for d, n := range s.votes {
		if n*5 >= s.n*4 && (least == 0 || d < least) {
			least = d
		}
	}
	if least == 0 && s.n == maxReads {
		*s = strideDetector{idle: learnPause}
	}
	return least
}
