package prefetch

import "cmp"

// far returns how many positions ahead of a rank's front its files are fetched before their turn.
func (t *Tracker) far() int {
	return min(int(2*neighboursShare*float64(t.cfg.Budget/t.cfg.Mean))/len(t.active), mostAhead)
}

// earlyShare is the part of the budget up to which overflow files are fetched early.
const earlyShare = 0.3

// mostLooks bounds the positions examined to find one file to fetch early.
const mostLooks = 256

// early returns the next overflow file to fetch before its turn, with its neighbours, unless such files are in flight.
// A rank that moves to other chunks reads files of many runs at once; fetching early has read these steadily before.
func (t *Tracker) early() []Want {
	if t.cfg.Overflows == nil || t.filling() || t.earlier > 0 || float64(t.held) > earlyShare*float64(t.cfg.Budget) {
		return nil
	}
	for range mostLooks {
		var r *rank
		for _, o := range t.active {
			o.early = max(o.early, o.next)
			if o.early < o.front+t.far() && (r == nil || cmp.Or(cmp.Compare(o.early-o.front, r.early-r.front), cmp.Compare(o.id, r.id)) < 0) {
				r = o
			}
		}
		if r == nil || r.early >= r.length && t.next() < 0 || r.early >= 2*r.length {
			return nil
		}
		at := r.early
		r.early++
		if f := t.fileAt(r, at); f < 0 || !t.cfg.Overflows(f) || t.needed(f, at, r) {
			continue
		}
		if it := t.want(r, at); it != nil {
			it.early = true
			t.earlier++
			return append([]Want{it.Want}, t.neighbours(it, at >= r.length)...)
		}
	}
	return nil
}

// needed reports whether a file or one of its neighbours is held, or is still read in the current epoch before the
// given position of the next one: then the run would be fetched in parts.
func (t *Tracker) needed(file, at int, r *rank) bool {
	is := func(f int) bool { return t.items[f] != nil || t.unread(f, at, r) }
	found := is(file)
	t.cfg.Neighbours(file, func(f int) bool {
		found = found || is(f)
		return true
	})
	return found
}

// filling reports whether files are still being staged. The source is then at its limit: fetching ahead from it delays
// files that a reader waits for.
func (t *Tracker) filling() bool { return t.cfg.Filling != nil && t.cfg.Filling() }

// filled requests again, once staging has ended, the files put off meanwhile that are still to be read.
func (t *Tracker) filled() {
	for _, r := range t.active {
		if len(r.putOff) == 0 || t.filling() {
			continue
		}
		for _, at := range r.putOff {
			if at >= r.front {
				r.redo = append(r.redo, at)
			}
		}
		r.putOff = nil
	}
}

// arrived records that an item is no longer in flight.
func (t *Tracker) arrived(it *item) {
	if it.early {
		it.early = false
		t.earlier--
	}
}
