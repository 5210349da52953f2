package prefetch

import "time"

// The kernel's cache may keep files from one epoch to the next. The daemon does not see their reads, and fetching them
// again is useless. So some files are beacons: their pages are dropped and the bytes kept in memory, so their reads
// show where the ranks are. Probes that are not beacons show whether the kernel caches files: it does if ranks pass
// probes without a visible read. Then only beacons are fetched, until reads of other files are seen again.

const (
	beaconEvery = 2 * probeEvery // positions between beacons: every other probe is one
	beaconsFar  = 64             // upper bound of that while the files are resident
	beaconsEach = 16             // least beacons of a rank in an epoch while the files are resident
	residentAt  = 0.9            // share of cached files above which the files count as resident,
	evictedAt   = 0.6            // and below which they no longer do
	cacheWeight = 1. / 8
)

// cacheShare estimates the share of the read files that the kernel has cached.
type cacheShare struct {
	share    float64 // moving average
	resident bool    // the kernel has nearly all files
}

// spacing returns the number of positions from a beacon of a rank to the next beacon.
func (t *Tracker) spacing(r *rank) int {
	if !t.cache.resident {
		return beaconEvery
	}
	return min(max(r.length/beaconsEach, beaconEvery), beaconsFar)
}

// sample records whether the kernel had cached a file that a rank read.
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
			r.next = min(r.next, max(r.front, 0)) // files that were left out are wanted now
		}
	}
}

// unread reports whether a rank here still reads the file in the current epoch, before the read at a position of the
// next one. The kernel would cache the file again.
func (t *Tracker) unread(file, at int, r *rank) bool {
	if at < r.length {
		return false
	}
	id, pos, ok := t.epoch(t.current).Find(file)
	o := t.active[id]
	return ok && o != nil && pos >= o.front-max(2*o.spread, o.window)
}

// sighted records the read of a beacon: if the files are resident, its rank has read all files up to there. It reports
// false if the rank was removed, or if the read may belong to an earlier epoch than the beacon.
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
