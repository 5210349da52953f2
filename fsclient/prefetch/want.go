package prefetch

import (
	"cmp"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// Next returns up to n files to fetch now, nearest first, each followed by its neighbours in the source.
func (t *Tracker) Next(n int, now time.Time) (ws []Want) {
	if t.phase != accessplan.Following {
		return nil
	}
	ws = t.again(n, now)
	t.filled()
	for first := len(ws); first < n; first++ {
		r := t.nearest()
		if r == nil {
			return append(ws, t.early()...)
		}
		if !t.fits(r) {
			return ws
		}
		at := r.take()
		if it := t.want(r, at); it != nil {
			ws = append(ws, it.Want)
			ws = append(ws, t.neighbours(it, at >= r.length)...)
		} else {
			first--
		}
	}
	return ws
}

// neighboursShare is the part of the budget up to which neighbours are fetched. The rest is for the files that ranks
// read next.
const neighboursShare = 0.75

// neighbours makes items of the files next to one in the source that ranks here read later. On average a file waits for
// its read about half as long as the last one, so there is room for far positions ahead.
func (t *Tracker) neighbours(of *item, lap bool) (ws []Want) {
	if t.cfg.Neighbours == nil {
		return nil
	}
	number := t.current
	if lap {
		number = t.next()
	}
	e, far := t.epoch(number), t.far()
	most := int64(neighboursShare * float64(t.cfg.Budget))
	place := func(file int) (r *rank, at int) {
		id, at, ok := e.Find(file)
		if r = t.active[id]; !ok || r == nil || t.items[file] != nil {
			return nil, 0
		}
		if lap {
			at += r.length
		}
		if at < r.front || at > r.front+far || r.seen(at) || t.unread(file, at, r) {
			return nil, 0
		}
		return r, at
	}
	for _, file := range t.cfg.Neighbours(of.File, func(file int) bool { r, _ := place(file); return r != nil }) {
		r, at := place(file)
		if r == nil || t.held+t.cfg.Size(file) > most {
			continue
		}
		if it := t.want(r, at); it != nil {
			it.Run, t.joined = of.Run, true
			ws = append(ws, it.Want)
		}
	}
	return ws
}

// want makes an item of the file at a position; it returns nil if the file should not be fetched now.
func (t *Tracker) want(r *rank, at int) *item {
	f := t.fileAt(r, at)
	if f < 0 || r.seen(at) || at < r.front-r.window {
		return nil
	}
	if t.cfg.Overflows != nil && t.filling() && t.cfg.Overflows(f) {
		r.putOff = append(r.putOff, at)
		if len(r.putOff) > 2*mostAhead {
			r.putOff = slices.DeleteFunc(r.putOff, func(at int) bool { return at < r.front })
		}
		return nil
	}
	beacon := at >= r.beacon && at < r.next && !t.unread(f, at, r) // a file before its turn is no beacon
	if t.cache.resident && !beacon {
		return nil
	}
	t.runs++
	w := Want{File: f, Rank: r.id, Probe: beacon || at%probeEvery == 0, Beacon: beacon, Run: t.runs}
	if it := t.items[f]; it != nil {
		if it.Rank != r.id || it.at < at {
			it.then, it.next = &w, at // its pages may be dropped by then
		}
		return nil
	}
	if beacon {
		r.beacon = at + t.spacing(r)
	}
	it := &item{Want: w, at: at, bytes: t.cfg.Size(f)}
	t.items[f] = it
	t.held += it.bytes
	r.items = append(r.items, it)
	return it
}

// again returns wants that were not staged at the last attempt and whose next attempt is due.
func (t *Tracker) again(n int, now time.Time) (ws []Want) {
	for _, r := range t.active {
		for _, it := range r.items {
			if len(ws) < n && !it.again.IsZero() && !now.Before(it.again) {
				it.again = time.Time{}
				ws = append(ws, it.Want)
			}
		}
	}
	return ws
}

// nearest returns the rank whose next want is closest to its front, or nil if no rank wants a file.
func (t *Tracker) nearest() *rank {
	var best *rank
	for _, r := range t.active {
		end := r.length
		if t.next() >= 0 {
			end *= 2
		}
		n, far := r.first(), t.distance(r)
		if end > r.length && r.front+far >= r.length {
			far = max(far, min(far+r.burst(), r.length/2))
		}
		r.filling = n < end && (n < r.front+far*3/4 || r.filling && n <= r.front+far)
		if !r.filling {
			continue
		}
		if best == nil || cmp.Or(cmp.Compare(r.first()-r.front, best.first()-best.front), cmp.Compare(r.id, best.id)) < 0 {
			best = r
		}
	}
	return best
}

// distance returns how many positions ahead of a rank files are fetched.
func (t *Tracker) distance(r *rank) int {
	d := int(r.pace * (2*t.took + timeAhead).Seconds())
	if t.joined { // the rest of the budget is for neighbours
		d = min(d, int((1-neighboursShare)*float64(t.cfg.Budget/t.cfg.Mean))/len(t.active))
	}
	return min(max(d, leastAhead, 2*t.spacing(r)), mostAhead, max(r.length/2, 1))
}

// fileAt returns the file at a position of a rank, or -1 if there is none.
func (t *Tracker) fileAt(r *rank, at int) int {
	n := t.current
	if at >= r.length {
		n, at = t.next(), at-r.length
	}
	if e := t.epoch(n); e != nil && at >= 0 && at < e.Len(r.id) {
		return e.At(r.id, at)
	}
	return -1
}

// fits reports whether the budget has room for the next file of a rank, and makes room if it can. A file larger than
// the whole budget fits if no other file is held.
func (t *Tracker) fits(r *rank) bool {
	n := t.cfg.Mean
	if f := t.fileAt(r, r.first()); f >= 0 {
		n = min(t.cfg.Size(f), t.cfg.Budget)
	}
	if t.held+n > t.cfg.Budget {
		t.relieve()
	}
	return t.held+n <= t.cfg.Budget
}

// relieve releases held files that are behind their rank's front, to make room.
func (t *Tracker) relieve() {
	for _, r := range t.active {
		for _, it := range slices.Clone(r.items) {
			if it.fetched && it.at < r.front {
				if it.stored {
					t.count.hits++
				}
				t.release(it)
			}
		}
	}
}

// Fetched processes the result of a want. It reports whether the file is still wanted.
func (t *Tracker) Fetched(w Want, res Result, bytes int64, took time.Duration, now time.Time) bool {
	if took > 0 {
		t.took += (took - t.took) / 8
	}
	it := t.items[w.File]
	if it == nil || it.fetched {
		return false
	}
	if it.met && res != Met {
		t.count.misses++ // its reader did not wait, or fetched it later
		t.release(it)
		return false
	}
	switch res {
	case Later:
		if it.tries++; it.tries > mostTries {
			t.release(it)
			return false
		}
		it.again = now.Add(retryDelay << it.tries)
		return true
	case Failed:
		if r := t.active[it.Rank]; r != nil && it.Beacon {
			r.beacon = min(r.beacon, it.at) // another file becomes the beacon
		}
		t.release(it)
		return false
	}
	t.arrived(it)
	t.held += bytes - it.bytes
	it.bytes, it.fetched, it.stored = bytes, true, res == Stored
	t.count.bytes += bytes
	if res == Met {
		t.count.hits++
		t.release(it) // it stays in memory for the rest of the read
	}
	return true
}

// overtaken reports whether a want that was not requested yet is no longer needed, because its file was read. It then
// gives up the want.
func (t *Tracker) overtaken(w Want, now time.Time) bool {
	if it := t.items[w.File]; it != nil && !it.met {
		return false
	}
	t.Fetched(w, Failed, 0, 0, now)
	return true
}

// consume records that a file was read; it returns true if the file was prefetched and is still held, or is in flight.
// For a file in flight, Fetched decides whether the read is a hit.
func (t *Tracker) consume(file int) bool {
	it := t.items[file]
	if it == nil {
		return false
	}
	if !it.fetched && it.again.IsZero() {
		it.met = true
		return true
	}
	hit := it.fetched && !it.stored // a read of a stored file means that the kernel dropped it
	if hit {
		t.count.hits++
	}
	t.release(it)
	return hit
}

// release gives up an item. The bytes of an item in flight are discarded when they arrive.
func (t *Tracker) release(it *item) {
	if t.items[it.File] != it {
		return
	}
	delete(t.items, it.File)
	t.arrived(it)
	t.held -= it.bytes
	if it.fetched && !it.stored {
		t.released = append(t.released, it.File)
	}
	if r := t.active[it.Rank]; r != nil {
		r.drop(it)
	}
	if it.then == nil {
		return
	}
	if r := t.active[it.then.Rank]; r != nil {
		r.redo = append(r.redo, it.next)
	}
}

// Lost records that the kernel has lost all pages: files that were stored and not read yet are fetched again.
func (t *Tracker) Lost() {
	for _, r := range t.active {
		for _, it := range slices.Clone(r.items) {
			if it.stored && it.at >= r.front && !r.seen(it.at) {
				t.release(it)
				r.redo = append(r.redo, it.at)
			}
		}
	}
}

// Released returns the files kept in memory that have become unwanted since the last call.
func (t *Tracker) Released() []int {
	r := t.released
	t.released = nil
	return r
}
