package mount

import (
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestLatency compares the buckets with a list of the durations.
func TestLatency(t *testing.T) {
	var l latency
	times := []time.Duration{0, 1, firstBound - 1, firstBound, firstBound + 1, 2 * firstBound, 2*firstBound + 1,
		time.Millisecond, time.Second, time.Hour}
	sum := time.Duration(0)
	for _, d := range times {
		l.add(d)
		sum += d
	}
	r := l.read()
	buckets, first, total := r.Buckets()
	if total != sum || r.Count != int64(len(times)) || len(buckets) != bounds+1 {
		t.Errorf("count %d, sum %v, %d buckets, want %d, %v, %d", r.Count, total, len(buckets), len(times), sum, bounds+1)
	}
	upTo := int64(0)
	for i, n := range buckets[:bounds] {
		want := int64(0)
		for _, d := range times {
			if d <= first<<i {
				want++
			}
		}
		if upTo += n; upTo != want {
			t.Errorf("%d times up to %v, want %d", upTo, first<<i, want)
		}
	}
}

func TestLatencyQuantiles(t *testing.T) {
	var l latency
	if r := l.read(); r.Median != 0 || r.P99 != 0 || r.Mean != 0 {
		t.Errorf("of nothing = %+v", r)
	}
	for range 98 {
		l.add(100 * time.Microsecond)
	}
	l.add(time.Second)
	l.add(time.Hour)
	r := l.read()
	if r.Median < 100e-6 || r.Median > 200e-6 || r.P99 < 1 {
		t.Errorf("median %v, p99 %v, want about 100e-6 and more than 1", r.Median, r.P99)
	}
}

// TestReadsByDataset: reads of datasets, and only these, are counted per dataset.
func TestReadsByDataset(t *testing.T) {
	var c opCounters
	c.answered(opRead, metadata.SealedIno(1, 0, 5), 3*time.Millisecond)
	c.answered(opRead, metadata.SealedIno(1, metadata.DirPart, 0), 20*time.Second)
	c.answered(opRead, metadata.SealedIno(2, 0, 5), time.Microsecond)
	c.answered(opGetattr, metadata.SealedIno(3, 0, 5), time.Second)
	c.answered(opRead, metadata.FirstIno, time.Second)
	s := c.stats()
	one := s.Datasets[1]
	n, first, sum := one.Buckets()
	if len(s.Datasets) != 2 || one.Count != 2 || s.Datasets[2].Count != 1 || one.First == 0 {
		t.Errorf("datasets are %+v", s.Datasets)
	}
	if first != firstBound || sum != 20*time.Second+3*time.Millisecond || len(n) != bounds+1 || n[9] != 1 || n[bounds] != 1 {
		t.Errorf("buckets from %v on are %v, %v together", first, n, sum)
	}
	n[9] = 7
	if again, _, _ := one.Buckets(); again[9] != 1 {
		t.Error("Buckets hands out its own counters")
	}
}
