package show

import (
	"strings"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

func TestPlan(t *testing.T) {
	for want, s := range map[string]accessplan.State{
		"  no rank has begun to read\n":                       {Phase: accessplan.Waiting},
		"  not followed: the script reads in another order\n": {Phase: accessplan.Stale, Reason: "the script reads in another order"},
		"  prefetch is off: ahead=0\n":                        {Phase: accessplan.Off, Reason: "ahead=0"},
		"  followed, epoch 2, 75 % of the reads were prefetched (1.0 KiB)\n  RANK  NODE  EPOCH  READ  AHEAD\n  0     a     2      10    3\n": {
			Phase: accessplan.Following, Epoch: 2, Hits: 3, Misses: 1, HitRate: 0.75, Prefetched: 1024,
			Ranks: []accessplan.RankState{{Rank: 0, Node: "a", Epoch: 2, Position: 10, Ahead: 3}},
		},
	} {
		var b strings.Builder
		if err := Plan(&b, s); err != nil || b.String() != want {
			t.Errorf("Plan(%+v) = %q, %v, want %q", s, b.String(), err, want)
		}
	}
}
