package prefetch

import "cmp"

// far is how many positions ahead of its front a rank's files are fetched before their turn.
func (t *Tracker) far() int {
	return min(int(2*neighboursShare*float64(t.cfg.Budget/t.cfg.Mean))/len(t.active), mostAhead)
}

// earlyShare is the part of the budget that may be held when a file that stays in the source is fetched early.
const earlyShare = 0.3

// mostLooks is how many positions are looked at for one that is fetched early, at a time.
const mostLooks = 256

// early returns the next file that stays in the source before its turn, with its neighbours, unless such files are under
// way. A rank that goes on to other chunks reads files of many runs at once; so the source has read these steadily before.
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

// needed reports whether a file or one of its neighbours is held, or read in the current epoch before it is read at a
// position of the next one: the run would be fetched in parts.
func (t *Tracker) needed(file, at int, r *rank) bool {
	is := func(f int) bool { return t.items[f] != nil || t.unread(f, at, r) }
	found := is(file)
	t.cfg.Neighbours(file, func(f int) bool {
		found = found || is(f)
		return true
	})
	return found
}

// filling reports whether files are still being staged. The source gives all that it can then: what is fetched ahead from it
// delays files that a reader waits for.
func (t *Tracker) filling() bool { return t.cfg.Filling != nil && t.cfg.Filling() }

// filled has the files wanted that were put off while others were staged, and are still to be read.
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

// arrived notes that an item is not under way any more.
func (t *Tracker) arrived(it *item) {
	if it.early {
		it.early = false
		t.earlier--
	}
}
