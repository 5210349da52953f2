package prefetch

import (
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// TestOldPosition: a position counts once. Reads outside the plan invalidate it, however old it is.
func TestOldPosition(t *testing.T) {
	now := time.Unix(1e9, 0)
	said := accessplan.Position{Rank: 1, Epoch: 2, Position: 10}
	f := &follower{
		e: &Engine{cfg: EngineConfig{
			Now:       func() time.Time { return now },
			Positions: func() []accessplan.Position { return []accessplan.Position{said} },
		}},
		heard: make(map[int]accessplan.Position),
		t:     New(shuffled{files: 4096, ranks: 2, seed: 1, known: true}, Config{Budget: 1 << 20, Mean: fileSize}),
	}
	f.positions()
	if s := f.t.State(); s.Phase != accessplan.Following || s.Epoch != 2 {
		t.Fatalf("after a position: %+v", s)
	}
	for i := range 200 { // another script reads files in its own order
		f.t.Observe((i*37)%4096, now)
		f.positions()
	}
	if s := f.t.State(); s.Phase == accessplan.Following {
		t.Errorf("reads in another order, and an old position: %+v", s)
	}
	said.Position = 300
	f.positions()
	if s := f.t.State(); s.Phase != accessplan.Following || len(s.Ranks) != 1 || s.Ranks[0].Position != 300 {
		t.Errorf("after a new position: %+v", s)
	}
}
