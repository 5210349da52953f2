package prefetch

import (
	"testing"
	"time"
)

// pipe is a network that delivers bytes in order.
type pipe struct {
	w       window
	rate    int64 // bytes per second
	latency time.Duration
	now     time.Time
	free    time.Time // when it has delivered all bytes
	queue   []parcel
	queued  time.Duration // the longest time that bytes were in flight
}

type parcel struct {
	n    int64
	done time.Time
}

// fetch keeps the window filled for long. A file has n bytes, and a batch at most files of them.
func (p *pipe) fetch(n int64, files int, long time.Duration) (bytes int64) {
	for end := p.now.Add(long); p.now.Before(end); {
		for wants := p.w.room(n); wants > 0; {
			k := min(wants, int64(files))
			wants -= k
			if p.free.Before(p.now) {
				p.free = p.now
			}
			p.free = p.free.Add(time.Duration(k * n * int64(time.Second) / p.rate))
			p.w.begin(k*n, p.now)
			p.queue = append(p.queue, parcel{k * n, p.free.Add(p.latency)})
			p.queued = max(p.queued, p.queue[len(p.queue)-1].done.Sub(p.now))
		}
		x := p.queue[0]
		p.queue = p.queue[1:]
		p.now = x.done
		p.w.end(x.n, x.n, p.now)
		bytes += x.n
	}
	return bytes
}

// TestWindow: on any network, most of the bandwidth is used, and bytes in flight arrive within a few lags, from the
// start and soon after the bandwidth changes.
func TestWindow(t *testing.T) {
	for _, rate := range []int64{5e6, 12.5e6, 125e6, 1250e6, 12500e6} {
		for _, latency := range []time.Duration{20 * time.Microsecond, 500 * time.Microsecond, 5 * time.Millisecond} {
			for _, n := range []int64{4 << 10, 100 << 10} {
				p := &pipe{rate: rate, latency: latency, now: time.Unix(1e9, 0)}
				for _, change := range []int64{1, 10, 1} {
					p.rate = rate / change
					p.fetch(n, 5, time.Second)
					p.queued = 0
					bytes := p.fetch(n, 5, time.Second)
					reach := min(float64(p.rate), mostFlying/2/latency.Seconds()) // the limit on bytes in flight
					if float64(bytes) < 0.7*reach {
						t.Errorf("%d B/s, %v, files of %d bytes: %d bytes in a second", p.rate, latency, n, bytes)
					}
					if longest := max(2*lag, time.Duration(leastFlying*int64(time.Second)/p.rate)) + 2*latency; p.queued > longest {
						t.Errorf("%d B/s, %v, files of %d bytes: under way for %v", p.rate, latency, n, p.queued)
					}
				}
			}
		}
	}
}

// TestWindowLoss: failed requests leave the window, which opens again afterwards.
func TestWindowLoss(t *testing.T) {
	p := &pipe{rate: 125e6, latency: time.Millisecond, now: time.Unix(1e9, 0)}
	p.fetch(100<<10, 5, time.Second)
	for range 20 {
		p.w.begin(batchBytes, p.now)
		p.now = p.now.Add(10 * time.Second)
		p.w.end(batchBytes, 0, p.now)
	}
	for len(p.queue) > 0 {
		p.w.end(p.queue[0].n, p.queue[0].n, p.now)
		p.queue = p.queue[1:]
	}
	if n := p.w.room(1); n < leastFlying || n > 2*leastFlying {
		t.Errorf("%d bytes may be fetched from nodes that do not answer", n)
	}
	p.fetch(100<<10, 5, time.Second)
	if n := p.fetch(100<<10, 5, time.Second); n < 80e6 {
		t.Errorf("%d bytes a second after the losses", n)
	}
}
