package cluster

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestReplicas: replicas are spread evenly, never on the holder, and stay when a node is lost, except that the first
// one stands in for it.
func TestReplicas(t *testing.T) {
	m := upMap(6, 3)
	down := m.WithState(4, Down, "")
	count := make([]int, 6)
	for i := range 6_000 {
		ino, owner := metadata.SealedIno(1, 0, uint32(i)), metadata.NodeID(i%6)
		got := m.Replicas(nil, ino, owner, 2)
		if len(got) != 2 || got[0] == got[1] || slices.Contains(got, owner) {
			t.Fatalf("Replicas(%v, %d) = %v", ino, owner, got)
		}
		for _, id := range got {
			count[id]++
		}
		after := down.Replicas(nil, ino, owner, 2)
		switch holder := down.Holder(ino, owner); {
		case owner == 4 && (holder != got[0] || after[0] != got[1] || len(after) != 2):
			t.Fatalf("replicas %v; without the owner %d stands in with %v", got, holder, after)
		case slices.Contains(after, 4) || slices.Contains(after, holder):
			t.Fatalf("Replicas without node 4 = %v, the holder is %d", after, holder)
		}
		for _, id := range got {
			if id != 4 && id != down.Holder(ino, owner) && !slices.Contains(after, id) {
				t.Fatalf("replicas %v move to %v when node 4 is lost", got, after)
			}
		}
	}
	checkEven(t, "Replicas", count)
	for _, n := range []int{5, 9} {
		if got := m.Replicas([]metadata.NodeID{9}, metadata.SealedIno(1, 0, 1), 2, n); !slices.Equal(got, []metadata.NodeID{9, 0, 1, 3, 4, 5}) {
			t.Errorf("all replicas = %v", got)
		}
	}
	if got := m.Replicas(nil, metadata.SealedIno(1, 0, 1), 2, 0); len(got) != 0 {
		t.Errorf("no replicas = %v", got)
	}
}

func TestParseReplicas(t *testing.T) {
	for s, want := range map[string]int{"none": 0, "0": 0, "1": 1, "3": 3, "99": 3, "all": 3, "spare": 3} {
		r, err := ParseReplicas(s)
		if got := r.Count(4); err != nil || got != want {
			t.Errorf("ParseReplicas(%q) is %d of 4 nodes, %v, want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"-1", "1.5", "many", "99999", "01", "+1", " 1"} {
		if r, err := ParseReplicas(s); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("ParseReplicas(%q) = %q, %v, want EINVAL", s, r, err)
		}
	}
	if n := Replicas("2").Count(1); n != 0 {
		t.Errorf("%d replicas on one node", n)
	}
}
