package writeback

import (
	"testing"
	"time"
)

// TestClaim: a client claims a bounded part of the space that a node reported, and none of the reserve.
func TestClaim(t *testing.T) {
	now := time.Unix(1e9, 0)
	const n, least = 1 << 20, 100 << 20
	type answer struct{ ok, known bool }
	granted, refused, ask := answer{true, true}, answer{false, true}, answer{}
	for _, tt := range []struct {
		name    string
		free    int64 // as reported by the node
		claimed int   // claims of n before
		later   time.Duration
		want    answer
	}{
		{"plenty", 1 << 40, 0, 0, granted},
		{"the last of an answer", 1 << 40, 30, 0, granted},
		{"more than of an answer", 1 << 40, 31, 0, ask},
		{"an old answer", 1 << 40, 0, spaceFresh, ask},
		{"less than must stay", least - 1, 0, 0, refused},
		{"as much as must stay", least, 0, 0, refused},
		{"just enough", least + n, 0, 0, granted},
		{"enough for what was claimed", least + 2*n, 2, 0, ask},
		{"an old answer of too little", 0, 0, spaceFresh, ask},
	} {
		var r freeSpace
		r.init()
		_, known, number := r.claim(1, n, least, now)
		if known {
			t.Errorf("%s: space is known without an answer", tt.name)
		}
		r.set(1, number, tt.free, now)
		for k := range tt.claimed {
			if ok, _, _ := r.claim(1, n, least, now); !ok {
				t.Fatalf("%s: claim %d is refused", tt.name, k)
			}
		}
		ok, known, _ := r.claim(1, n, least, now.Add(tt.later))
		if got := (answer{ok, known}); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

// TestClaimOfTwoAnswers: of two concurrent answers only one counts.
func TestClaimOfTwoAnswers(t *testing.T) {
	now := time.Unix(1e9, 0)
	var r freeSpace
	r.init()
	_, _, a := r.claim(1, mayClaim, 0, now)
	_, _, b := r.claim(1, mayClaim, 0, now)
	r.set(1, a, 1<<40, now)
	if ok, _, _ := r.claim(1, mayClaim, 0, now); !ok {
		t.Fatal("the first claim is refused")
	}
	r.set(1, b, 1<<40, now)
	if ok, _, _ := r.claim(1, 1, 0, now); ok {
		t.Error("more is claimed of an answer that was in flight with the first one")
	}
	_, _, c := r.claim(1, 1, 0, now)
	r.set(1, c, 1<<40, now)
	if ok, _, _ := r.claim(1, 1, 0, now); !ok {
		t.Error("the next answer does not count")
	}
}
