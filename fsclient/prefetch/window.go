package prefetch

import "time"

const (
	lag         = 50 * time.Millisecond // the longest wait of a demand read behind prefetch in the network
	leastFlying = 128 << 10             // bytes in flight
	mostFlying  = 4 << 20
)

// window bounds the bytes in flight from other nodes to the bytes that the network delivers within lag. More would
// fetch nothing sooner, and demand reads would queue behind it.
type window struct {
	flying int64
	rate   float64 // bytes per second that arrive while any are in flight, moving average; 0: unknown
	came   int64   // bytes that arrived since then:
	since  time.Time
}

// room returns how many more files of n bytes to fetch now. It is 0 until half of the window is free, so that batches
// are large.
func (w *window) room(n int64) int64 {
	size := int64(batchBytes)
	if w.rate > 0 {
		size = min(max(int64(w.rate*lag.Seconds()), leastFlying), mostFlying)
	}
	if w.flying > size/2 {
		return 0
	}
	return max((size-w.flying)/n, 1)
}

// begin records a request for n bytes.
func (w *window) begin(n int64, now time.Time) {
	if w.flying == 0 {
		w.came, w.since = 0, now
	}
	w.flying += n
}

// end records that of n requested bytes came have arrived, and that the others will not.
func (w *window) end(n, came int64, now time.Time) {
	w.flying -= n
	w.came += came
	took := now.Sub(w.since)
	if took <= 0 || took < lag/4 && w.flying > 0 {
		return
	}
	sample := float64(w.came) / took.Seconds()
	if w.rate == 0 {
		w.rate = sample
	}
	w.rate += (sample - w.rate) / 2
	w.came, w.since = 0, now
}
