package prefetch

import (
	"slices"
	"time"
)

// rank is a rank that reads on this node. Its positions continue from the current epoch into the next one: position
// length is the first of the next epoch.
type rank struct {
	id     int
	length int   // of an epoch
	window int   // positions around front in which reads fit
	front  int   // one more than the last position that was read
	spread int   // how far behind the front recent reads were
	next   int   // next position to want
	redo   []int // other positions to want
	putOff []int // positions to want once staging has ended
	early  int   // next position to want before its turn; at least next
	beacon int   // least position of the next beacon
	items  []*item
	recent [lookback / 2]int // ring of the positions of the last reads; the next one replaces
	reads  int               // recent[reads%len]
	late   int               // reads far behind since the last one that fit
	done   map[int]struct{}  // positions read, from front-window on

	filling bool    // wants up to the distance; pausing in between makes batches larger
	pace    float64 // positions per second, moving average over times of paceOver
	at      time.Time
	was     int // front at that time
}

// paceOver is the least time over which the pace is measured: a loader reads a batch at once and then waits.
const paceOver = 250 * time.Millisecond

func newRank(id, at, length int, now time.Time) *rank {
	r := &rank{
		id: id, length: length, window: min(max(length/8, leastWindow), mostWindow), front: at, was: at, next: max(at, 0), beacon: at,
		done: make(map[int]struct{}), at: now,
	}
	for i := range r.recent {
		r.recent[i] = at
	}
	return r
}

// activate starts to follow a rank from a position on.
func (t *Tracker) activate(id, at int, now time.Time) *rank {
	r := newRank(id, at, t.epoch(t.current).Len(id), now)
	t.active[id] = r
	return r
}

// near reports whether a position is close to that of an active rank.
func (t *Tracker) near(at int) bool {
	for _, r := range t.active {
		if d := at - r.front; max(d, -d) <= max(r.window, r.length/4) {
			return true
		}
	}
	return false
}

// straggles reports whether a file is read for the first time, near the end of the previous epoch, although its rank
// has begun the current one: the loader has handed out the whole epoch while workers still read.
func (t *Tracker) straggles(file int) bool {
	e := t.epoch(t.before)
	if e == nil {
		return false
	}
	id, pos, ok := e.Find(file)
	r := t.active[id]
	if !ok || r == nil || r.front >= r.window {
		return false
	}
	at := pos - r.length
	if at < -max(r.window, 2*r.spread) || r.seen(at) {
		return false
	}
	r.done[at] = struct{}{} // the next read belongs to the current epoch
	return true
}

// late reports whether a slow worker of a rank may read a file, far behind the others: in the current epoch, or in the
// previous one if its rank has begun the current one. The open of a file that the daemon served is also seen late. If a
// rank makes only such reads for long, it has gone back.
func (t *Tracker) late(file int, read bool) bool {
	for lap, n := range []int{t.current, t.before} {
		e := t.epoch(n)
		if e == nil {
			continue
		}
		id, pos, ok := e.Find(file)
		r := t.active[id]
		if !ok || r == nil || r.late > max(mostLate, 2*r.spread) {
			continue
		}
		if at := pos - lap*r.length; at < r.front && at >= r.front-r.length/3 && !(read && r.seen(at)) {
			r.late++
			return true
		}
	}
	return false
}

// fits reports whether a read at a position is one of the rank's next ones, or follows another read, as those of a late
// worker do.
func (r *rank) fits(at int) bool {
	return at >= r.front-r.window && at <= r.front+r.window || r.follows(at)
}

// follows reports whether a position is shortly after one of the last reads.
func (r *rank) follows(at int) bool {
	return slices.ContainsFunc(r.recent[:], func(q int) bool { return at > q && at-q <= 2*probeEvery })
}

// leastBurst and mostBurst bound a burst.
const (
	leastBurst = 64
	mostBurst  = 2048
)

// burst returns how many more positions to fetch ahead across the end of an epoch. A loader begins an epoch by
// requesting some batches from each worker at once, about as many as it has in flight within one.
func (r *rank) burst() int { return min(max(2*r.spread, leastBurst), mostBurst) }

// first returns the next position to want.
func (r *rank) first() int {
	if len(r.redo) > 0 {
		return min(slices.Min(r.redo), r.next)
	}
	return r.next
}

// take returns the same position as first and removes it from the positions to want.
func (r *rank) take() int {
	at := r.first()
	if i := slices.Index(r.redo, at); i >= 0 {
		r.redo = slices.Delete(r.redo, i, i+1)
		return at
	}
	r.next++
	return at
}

func (r *rank) seen(at int) bool {
	_, ok := r.done[at]
	return ok
}

// read records a read. An isolated read does not move the front, unless it is the read of a beacon.
func (r *rank) read(at int, beacon bool, now time.Time) {
	alone := !beacon && !r.follows(at)
	r.done[at] = struct{}{}
	r.recent[r.reads%len(r.recent)] = at
	r.reads++
	r.late = 0
	switch {
	case at < r.front:
		r.spread = max(r.spread-r.spread/64, r.front-at)
	case !alone:
		r.advance(at+1, now)
	}
}

func (r *rank) advance(front int, now time.Time) {
	r.front = front
	if took := now.Sub(r.at); took >= paceOver {
		r.pace += 0.5 * (float64(front-r.was)/took.Seconds() - r.pace)
		r.at, r.was = now, front
	}
	if r.next < r.front-r.window {
		r.next = r.front // far behind: fetching cannot catch up
	}
	if len(r.done) > 4*max(r.window, r.spread) {
		for at := range r.done {
			if at < r.front-max(r.window, 2*r.spread) {
				delete(r.done, at)
			}
		}
	}
}

// passed returns the items that the rank no longer reads.
func (r *rank) passed() (all []*item) {
	for _, it := range r.items {
		if it.at < r.front-min(2*r.spread+probeEvery, max(r.length/2, r.window)) {
			all = append(all, it)
		}
	}
	return all
}

func (r *rank) drop(it *item) {
	if i := slices.Index(r.items, it); i >= 0 {
		r.items = slices.Delete(r.items, i, i+1)
	}
}

// turn moves the origin of positions to the next epoch.
func (r *rank) turn() {
	r.front -= r.length
	r.was -= r.length
	r.early -= r.length
	r.beacon -= r.length
	r.next = max(r.next-r.length, 0)
	for _, it := range r.items {
		it.at -= r.length
	}
	for _, ps := range [][]int{r.redo, r.putOff, r.recent[:]} {
		for i := range ps {
			ps[i] -= r.length
		}
	}
	done := make(map[int]struct{}, len(r.done))
	for at := range r.done {
		done[at-r.length] = struct{}{}
	}
	r.done = done
}
