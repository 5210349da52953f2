package replicas

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestPace: while readers use the path, replicas take a small part of it; without them nearly all.
func TestPace(t *testing.T) {
	var p pacer
	r := rand.New(rand.NewPCG(1, 2))
	run := func(times int, slower float64) float64 { // the share of time in which it transfers
		var busy, all time.Duration
		for range times {
			n := measured << r.IntN(6)
			took := time.Duration(float64(n) * (0.9 + 0.2*r.Float64()) * slower * float64(80*time.Nanosecond))
			busy += took
			all += took + p.pause(n, took)
		}
		return float64(busy) / float64(all)
	}
	for range 3 {
		if got := run(200, 1); got < 0.7 {
			t.Errorf("alone, replicas transfer %.2f of the time", got)
		}
		if got := run(200, 3); got > 0.2 {
			t.Errorf("beside readers, replicas transfer %.2f of the time", got)
		}
		if got := run(20, 3); got < leastShare/2 {
			t.Errorf("beside readers, replicas transfer only %.2f of the time", got)
		}
	}
	// A path that has become slower for good is learnt.
	if run(6000, 3); run(500, 3) < 0.7 {
		t.Error("replicas yield for ever to a path that has become slower")
	}
	// Small files tell nothing of the path.
	before := p.share
	if p.pause(1000, time.Second); p.share != before {
		t.Error("a small file changed the share")
	}
}
