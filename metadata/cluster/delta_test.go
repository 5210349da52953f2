package cluster

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// jobOf returns the first View of a job of n nodes, and the addresses of the nodes.
func jobOf(n int) (View, []string) {
	var hosts, addrs []string
	for i := range n {
		hosts = append(hosts, fmt.Sprintf("node%04d", i))
		addrs = append(addrs, fmt.Sprintf("node%04d:7100", i))
	}
	return View{Map: NewMap(7, hosts)}, addrs
}

// change returns a View after v, in which some nodes and datasets have changed.
func change(v View, addrs []string, rng *rand.Rand) View {
	v.Version++
	switch rng.IntN(9) {
	case 2:
		v.Map, _ = v.Map.WithRestored(v.Map.Changed())
	case 0:
		v.Datasets = append(v.Datasets[:len(v.Datasets):len(v.Datasets)], Dataset{ID: metadata.DatasetID(len(v.Datasets) + 1), Name: "set"})
	case 1:
		v.Closing = true
	default:
		var cs []Change
		for range 1 + rng.IntN(4) {
			id := metadata.NodeID(rng.IntN(len(addrs)))
			addr := addrs[id]
			if rng.IntN(5) == 0 {
				addr = "10.0.0.1:7"
			}
			cs = append(cs, Change{id, State(1 + rng.IntN(3)), addr, []string{"", "a", "b"}[id%3]})
		}
		v.Map = v.Map.With(cs)
	}
	return v
}

func encoded(t testing.TB, x any) []byte {
	t.Helper()
	b, err := json.Marshal(x)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// send returns a delta after encoding and decoding, and the size of its encoding.
func send(t *testing.T, d Delta) (Delta, int) {
	t.Helper()
	b := encoded(t, d)
	var got Delta
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	return got, len(b)
}

// TestDelta: nodes that ask from time to time end with the View of the leader, even if a leader remembers little.
func TestDelta(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 5))
		first, addrs := jobOf(1 + rng.IntN(9))
		leader, has := NewHistory(first, addrs), NewHistory(first, addrs)
		v, mine := first, first
		for range 1 + rng.IntN(2*maxHistory) {
			v = change(v, addrs, rng)
			if rng.IntN(20) == 0 {
				leader = NewHistory(first, addrs) // another leader
			}
			if rng.IntN(3) == 0 {
				leader.Delta(uint64(rng.IntN(int(v.Version))), v) // another node asks
			}
			if rng.IntN(4) > 0 {
				continue
			}
			d, _ := send(t, leader.Delta(mine.Version, v))
			var ok bool
			if mine, ok = has.Apply(&d, mine); !ok || string(encoded(t, mine)) != string(encoded(t, v)) {
				t.Fatalf("seed %d: %+v makes\n%s, %v; want\n%s", seed, d, encoded(t, mine), ok, encoded(t, v))
			}
		}
	}
}

// TestDeltaRefused: a delta that cannot be of this job changes nothing.
func TestDeltaRefused(t *testing.T) {
	first, addrs := jobOf(3)
	v := View{Version: 4, Map: first.Map}
	for what, d := range map[string]Delta{
		"another version":     {From: 3, Version: 5},
		"an older version":    {From: 4, Version: 3},
		"no such node":        {From: 4, Version: 5, Nodes: []nodeGroup{{IDs: [][2]metadata.NodeID{{1, 3}}}}},
		"an empty range":      {From: 4, Version: 5, Nodes: []nodeGroup{{IDs: [][2]metadata.NodeID{{2, 1}}}}},
		"no such dataset":     {From: 4, Version: 5, Datasets: []Dataset{{ID: 2}}},
		"dataset 0":           {From: 4, Version: 5, Datasets: []Dataset{{ID: 0}}},
		"a known address":     {From: 4, Version: 5, Nodes: []nodeGroup{{IDs: [][2]metadata.NodeID{{2, 2}}, Known: true}}},
		"one of two datasets": {From: 4, Version: 5, Datasets: []Dataset{{ID: 1}, {ID: 3}}},
	} {
		if got, ok := d.Apply(v, addrs[:2]); ok || string(encoded(t, got)) != string(encoded(t, v)) {
			t.Errorf("%s: %v, %s", what, ok, encoded(t, got))
		}
	}
}

// startBytes returns how much a leader sends until n nodes know that all are up: the nodes come up in some ten batches,
// as their daemons start, and each node reports once per batch. full is the size if it sent whole Views.
func startBytes(t *testing.T, n int) (sent, full int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(n), 9))
	v, addrs := jobOf(n)
	h := NewHistory(v, addrs)
	has := make([]View, n)
	for i := range has {
		has[i] = v
	}
	order := rng.Perm(n)
	for len(order) > 0 {
		var cs []Change
		for range min(len(order), 1+rng.IntN(n/5)) {
			cs = append(cs, Change{ID: metadata.NodeID(order[0]), State: Up, Addr: addrs[order[0]]})
			order = order[1:]
		}
		v.Map, v.Version = v.Map.With(cs), v.Version+1
		whole := len(encoded(t, v))
		for i := range has {
			d, bytes := send(t, h.Delta(has[i].Version, v))
			var ok bool
			if has[i], ok = h.Apply(&d, has[i]); !ok {
				t.Fatalf("node %d cannot apply %+v", i, d)
			}
			sent, full = sent+bytes, full+whole
		}
	}
	return sent, full
}

// TestStartBytes: a leader sends far less than whole Views while a job starts, in proportion even less with more nodes.
func TestStartBytes(t *testing.T) {
	for _, n := range []int{64, 128} {
		sent, full := startBytes(t, n)
		t.Logf("%4d nodes: %d bytes in deltas, %d in whole views: %.3f", n, sent, full, float64(sent)/float64(full))
		if sent*20 > full {
			t.Errorf("%d nodes: %d bytes, want at most a twentieth of %d", n, sent, full)
		}
	}
}

// FuzzDelta: no Delta from a peer causes a panic or a View with other nodes.
func FuzzDelta(f *testing.F) {
	first, addrs := jobOf(4)
	v := View{Version: 2, Map: first.Map, Datasets: []Dataset{{ID: 1, Name: "set"}}}
	next := v
	next.Map, next.Version = next.Map.With([]Change{{ID: 1, State: Up, Addr: addrs[1]}, {ID: 2, State: Up, Addr: "x"}}), 3
	f.Add(encoded(f, next.Since(v, addrs)))
	f.Fuzz(func(t *testing.T, b []byte) {
		var d Delta
		if json.Unmarshal(b, &d) != nil {
			return
		}
		got, _ := d.Apply(v, addrs)
		if len(got.Map.Nodes) != len(v.Map.Nodes) {
			t.Errorf("%d nodes", len(got.Map.Nodes))
		}
	})
}
