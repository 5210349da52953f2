package prefetch

import "time"

// The kernel's cache may keep files from one epoch to the next. Their reads are not seen, and to fetch them again is in
// vain. So some files are beacons: their pages are dropped and the bytes are kept in memory. Their reads show where the
// ranks are. Probes that are not beacons show whether the kernel caches files: it does if ranks pass probes whose reads are
// not seen. Then only beacons are fetched, until reads of other files are seen again.

const (
	beaconEvery = 2 * probeEvery // positions between beacons: every other probe is one
	beaconsFar  = 64             // at the most, while the files are resident
	beaconsEach = 16             // of a rank in an epoch, at the least, while the files are resident
	residentAt  = 0.9            // share of cached files at which the files are taken for resident,
	evictedAt   = 0.6            // and at which they are not any more
	cacheWeight = 1. / 8
)

// cacheShare estimates how many of the files that are read the kernel has cached.
type cacheShare struct {
	share    float64 // moving average
	resident bool    // the kernel has nearly all files
}

// spacing is the number of positions from a beacon of a rank to the next.
func (t *Tracker) spacing(r *rank) int {
	if !t.cache.resident {
		return beaconEvery
	}
	return min(max(r.length/beaconsEach, beaconEvery), beaconsFar)
}

// sample records whether the kernel had cached a file that a rank has read.
func (t *Tracker) sample(cached bool) {
	to := 0.
	if cached {
		to = 1
	}
	c := &t.cache
	c.share += cacheWeight * (to - c.share)
	switch {
	case c.share > residentAt:
		c.resident = true
	case c.resident && c.share < evictedAt:
		c.resident = false
		for _, r := range t.active {
			r.next = min(r.next, max(r.front, 0)) // what was left out is wanted now
		}
	}
}

// unread reports whether a rank here reads a file in the current epoch before it is read at a position of the next one. The
// file would be cached again.
func (t *Tracker) unread(file, at int, r *rank) bool {
	if at < r.length {
		return false
	}
	id, pos, ok := t.epoch(t.current).Find(file)
	o := t.active[id]
	return ok && o != nil && pos >= o.front-max(2*o.spread, o.window)
}

// sighted records the read of a beacon: if the files are resident, its rank has read all up to there. It reports false if
// the rank is gone, or if the read may be one of an earlier epoch than the beacon is for.
func (t *Tracker) sighted(it *item, now time.Time) bool {
	r := t.active[it.Rank]
	if r == nil || t.unread(it.File, it.at, r) {
		return false
	}
	if n := it.at - r.front; n > 0 && t.cache.resident {
		t.count.hits += int64(n)
		for range n / probeEvery {
			t.sample(true)
		}
	}
	t.judge(1)
	r.read(it.at, true, now)
	t.advanced(r)
	return true
}
