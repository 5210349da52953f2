package cluster

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

func itoa(n int) string { return strconv.Itoa(n) }

// upMap returns a map of n nodes, all Up.
func upMap(n int, seed uint64) Map {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = "n" + itoa(i)
	}
	m := NewMap(seed, hosts)
	for i := range hosts {
		m = m.WithState(metadata.NodeID(i), Up, hosts[i]+":1")
	}
	return m
}

func TestWithState(t *testing.T) {
	ids := func(is ...metadata.NodeID) []metadata.NodeID { return append([]metadata.NodeID{}, is...) }
	check := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %v, want %v", what, got, want)
		}
	}
	m := NewMap(1, []string{"a", "b", "c"})
	check("Epoch", m.Epoch, metadata.Epoch(0))
	check("UpAt(0)", m.UpAt(0), ids(0, 1, 2))
	check("Up()", m.Up(), ids())

	m1 := m.WithState(0, Up, "a:1")
	m2 := m1.WithState(1, Up, "b:1")
	m3 := m2.WithState(0, Down, "")
	m4 := m3.WithState(0, Up, "a:2")
	m5 := m4.WithState(0, Up, "a:3")
	check("m5.Epoch", m5.Epoch, metadata.Epoch(5))
	for e, want := range [][]metadata.NodeID{ids(0, 1, 2), ids(0), ids(0, 1), ids(1), ids(0, 1), ids(0, 1)} {
		check("UpAt("+itoa(e)+")", m5.UpAt(metadata.Epoch(e)), want)
	}
	check("m3.Up()", m3.Up(), ids(1))
	check("m2.Up() after m3", m2.Up(), ids(0, 1))
	n, ok := m5.Node(0)
	check("Node(0)", n, Node{ID: 0, Host: "a", State: Up, Addr: "a:3", Since: 4, Terms: []Term{{From: 1, To: 3}, {From: 4}}})
	check("Node(0) ok", ok, true)
	if _, ok := m5.Node(3); ok {
		t.Error("Node(3) of 3 nodes is there")
	}
	check("WithState of no node", m5.WithState(9, Up, ""), m5)
}

// TestMapsShareNothing derives two successors from one map; they must not overwrite each other.
func TestMapsShareNothing(t *testing.T) {
	m := upMap(3, 1)
	for range 5 {
		m = m.WithState(1, Down, "").WithState(1, Up, "x")
	}
	before, _ := json.Marshal(m)
	a := m.WithState(1, Down, "")
	want, _ := json.Marshal(a)
	b := m.WithState(1, Leaving, "y").WithState(1, Up, "z")
	_ = b.WithState(2, Down, "")
	if got, _ := json.Marshal(a); string(got) != string(want) {
		t.Errorf("a successor changed its sibling: %s, want %s", got, want)
	}
	if got, _ := json.Marshal(m); string(got) != string(before) {
		t.Errorf("a successor changed its map: %s, want %s", got, before)
	}
}

func TestViewJSON(t *testing.T) {
	v := View{
		Version:  7,
		Map:      NewMap(3, []string{"a"}).WithState(0, Up, "a:1"),
		Datasets: []Dataset{{ID: 1, Name: "x", Source: "/x", Phase: Filling, Fill: true, Files: 2, Started: 5}},
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"version":7,"map":{"epoch":1,"seed":3,"nodes":[{"id":0,"host":"a","state":"up","addr":"a:1","since":1,` +
		`"terms":[{"from":1}]}]},"datasets":[{"id":1,"name":"x","source":"/x","coordinator":0,"phase":"filling","fill":true,` +
		`"files":2,"dirs":0,"bytes":0,"started":5}]}`
	if string(b) != want {
		t.Errorf("View as JSON = %s, want %s", b, want)
	}
	var back View
	if err := json.Unmarshal(b, &back); err != nil || !reflect.DeepEqual(back, v) {
		t.Errorf("View from JSON = %+v, %v, want %+v", back, err, v)
	}
	if err := json.Unmarshal([]byte(`{"map":{"nodes":[{"state":"upp"}]}}`), &back); err == nil {
		t.Error("state upp is taken")
	}
	if _, err := json.Marshal(Phase(9)); err == nil {
		t.Error("phase 9 has a name")
	}
	if got := State(9).String() + Leaving.String() + Sealed.String(); got != "state(9)leavingsealed" {
		t.Errorf("String() = %s", got)
	}
	if d, ok := v.Dataset(1); !ok || d.Name != "x" {
		t.Errorf("Dataset(1) = %v, %v", d, ok)
	}
	if _, ok := v.Dataset(2); ok {
		t.Error("Dataset(2) is there")
	}
}

func TestNodesOfMap(t *testing.T) {
	if got := NewMap(1, nil).Order(5, metadata.Layout{}); len(got) != 0 {
		t.Errorf("Order of no nodes = %v", got)
	}
	if got := NewMap(1, nil).FileOwner("x"); got != 0 {
		t.Errorf("FileOwner of no nodes = %v", got)
	}
	m := NewMap(1, []string{"a", "b", "c"})
	if got := slices.Max([]metadata.NodeID{m.FileOwner("1"), m.FileOwner("2"), m.FileOwner("3"), m.FileOwner("4"), m.FileOwner("5")}); got == 0 {
		t.Error("with no node Up everything is on node 0")
	}
}

// TestThroughout covers nodes that were Up ever since an epoch, were lost, were added later or do not exist.
func TestThroughout(t *testing.T) {
	m := NewMap(1, []string{"stays", "lost", "back", "late", "never"})
	for id := range metadata.NodeID(3) {
		m = m.WithState(id, Up, "x")
	}
	since := m.Epoch
	m = m.WithState(1, Down, "").WithState(2, Down, "").WithState(2, Up, "x").WithState(3, Up, "x")
	for id, want := range []bool{true, false, false, false, false, false} {
		if got := m.Throughout(metadata.NodeID(id), since); got != want {
			t.Errorf("Throughout(%d, %d) = %v, want %v", id, since, got, want)
		}
	}
	if !m.Throughout(2, m.Epoch) || !m.Throughout(2, 0) || m.Throughout(1, 0) {
		t.Error("of now, and of any time: who is Up")
	}
}
