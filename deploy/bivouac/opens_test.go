package main

import (
	"testing"

	"github.com/bivouacfs/bivouac/daemon/training"
)

// TestKernelReads: opens count as reads by the kernel alone, except those whose reads the daemon answered; opens during
// unwatched times are estimated.
func TestKernelReads(t *testing.T) {
	local := func(n int64) training.Places {
		return training.Places{Local: training.Count{Samples: n, Bytes: 100 * n}}
	}
	var k kernelReads
	k.begin(local(7))
	for i, s := range []struct {
		seen, daemon, want int64
	}{
		{10, 7, 10},
		{10, 9, 18}, // two of them were read by the daemon
		{0, 12, 18}, // three reads that precede their opens
		{5, 12, 20},
		{0, 20, 20}, // eight reads without an open, such as repeated reads of an open file
		{0, 20, 20},
		{4, 20, 24}, // they are not subtracted from later opens
	} {
		k.take(local(s.seen), local(s.daemon))
		if k.served != local(s.want) {
			t.Errorf("step %d: %+v, want %d samples", i, k.served, s.want)
		}
	}
	k.extrapolate(0.5)
	if k.served != local(36) {
		t.Errorf("with unwatched times: %+v", k.served)
	}
	k.take(local(1), local(20))
	k.extrapolate(1)
	if k.served != local(38) {
		t.Errorf("after more of them: %+v", k.served)
	}
}
