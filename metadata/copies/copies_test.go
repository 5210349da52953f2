package copies

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const (
	nodes = 5
	down  = 20 * time.Second // silence after which the leader gives a node up
)

// world is a job with one file. Node 0 leads; it is never lost, but can be cut off from any other node.
type world struct {
	r     *rand.Rand
	now   time.Time
	truth cluster.Map
	heard [nodes]time.Time // of each node, by the leader
	cut   [nodes][nodes]bool
	node  [nodes]node
	since metadata.Epoch
	order []metadata.NodeID

	begun, acked int // versions of the file
	write        *writing
	fault        string // a planted one
	reads, lost  int
	log          []string
}

type node struct {
	stopped bool
	leaves  bool
	view    cluster.Map
	lease   Lease
	has     int // the version of its copy; 0 is none
}

// writing is a write in progress by a node.
type writing struct {
	by      metadata.NodeID
	version int
	Write
}

func newWorld(seed uint64, fault string) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e6, 0), fault: fault}
	m := cluster.NewMap(seed, make([]string, nodes))
	for i := range nodes {
		m = m.WithState(metadata.NodeID(i), cluster.Up, "")
	}
	w.truth, w.since = m, m.Epoch
	l := metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(1 + w.r.IntN(nodes-1)), Copies: 2, Epoch: w.since}
	if w.r.IntN(2) == 0 {
		l = metadata.Layout{Width: 1, Copies: 2, Epoch: w.since}
	}
	w.order = m.Order(metadata.LiveIno(0, 2000+seed), l)
	for i := range w.node {
		w.node[i].view = m
		w.heard[i] = w.now
		w.node[i].lease.Renew(w.now, down)
	}
	return w
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%3ds ", int(w.now.Unix()-1e6))+fmt.Sprintf(format, args...))
}

func (w *world) reaches(a, b metadata.NodeID) bool {
	return !w.node[a].stopped && !w.node[b].stopped && (a == b || !w.cut[min(a, b)][max(a, b)])
}

// report is one report of a node. The leader answers with its map; the answer may be late.
func (w *world) report(i int) {
	if !w.reaches(metadata.NodeID(i), 0) {
		return
	}
	n, sent := &w.node[i], w.now
	w.heard[i] = w.now
	switch s, _ := w.truth.Node(metadata.NodeID(i)); {
	case s.State == cluster.Down && n.leaves:
		w.truth = w.truth.WithState(s.ID, cluster.Leaving, "")
		w.note("%d is back and leaves, epoch %d", i, w.truth.Epoch)
	case s.State == cluster.Down:
		w.truth = w.truth.WithState(s.ID, cluster.Up, "")
		w.note("%d is back, epoch %d", i, w.truth.Epoch)
	case s.State == cluster.Up && w.r.IntN(60) == 0:
		n.leaves = true
		w.truth = w.truth.WithState(s.ID, cluster.Leaving, "")
		w.note("%d leaves, epoch %d", i, w.truth.Epoch)
	}
	answer := w.truth
	if w.r.IntN(4) == 0 {
		w.now = w.now.Add(time.Duration(w.r.IntN(5)) * time.Second) // the answer is under way
	}
	if answer.Epoch > n.view.Epoch {
		n.view = answer
	}
	n.lease.Renew(sent, down)
}

// lead is one look of the leader at the reports.
func (w *world) lead() {
	for i := range nodes {
		id := metadata.NodeID(i)
		if s, _ := w.truth.Node(id); s.State != cluster.Down && i != 0 && w.now.Sub(w.heard[i]) > down {
			w.truth = w.truth.WithState(id, cluster.Down, "")
			w.note("%d is given up, epoch %d", i, w.truth.Epoch)
		}
	}
}

func (w *world) current(id metadata.NodeID) []metadata.NodeID {
	if w.fault == "a copy that returns counts" {
		return slices.DeleteFunc(slices.Clone(w.order), func(c metadata.NodeID) bool {
			n, _ := w.node[id].view.Node(c)
			return n.State == cluster.Down
		})
	}
	return w.node[id].view.Current(nil, w.order, w.since)
}

// stepWrite begins a write, or sends it to one copy, or acknowledges it. The writer may be lost any time.
func (w *world) stepWrite() {
	if w.write == nil || w.node[w.write.by].stopped {
		by := metadata.NodeID(w.r.IntN(nodes))
		if w.node[by].stopped {
			return
		}
		w.begun++
		w.write = &writing{by: by, version: w.begun}
		w.note("%d writes %d", by, w.begun)
		return
	}
	x := w.write
	now := w.current(x.by)
	missing := x.Missing(now)
	if len(now) == 0 {
		return // waits for a copy to return
	}
	if len(missing) == 0 || w.fault == "one copy is enough" && len(missing) < len(now) {
		w.acked, w.write = x.version, nil
		w.note("%d is acknowledged by %v", x.version, now)
		return
	}
	to := missing[w.r.IntN(len(missing))]
	if w.reaches(x.by, to) {
		w.node[to].has = x.version
		x.Done(to)
		w.note("%d has %d", to, x.version)
	}
}

// serves is what a node that has a copy checks.
func (w *world) serves(c metadata.NodeID, reader metadata.Epoch) bool {
	n := &w.node[c]
	self, _ := n.view.Node(c)
	if !n.lease.Valid(w.now) && w.fault != "no lease" {
		return false
	}
	return Serves(self, reader) || w.fault == "any reader"
}

// read has a node read from one current copy, with something in between.
func (w *world) read() error {
	by := metadata.NodeID(w.r.IntN(nodes))
	least := w.acked
	now := w.current(by)
	if w.node[by].stopped || len(now) == 0 {
		w.lost++
		return nil
	}
	from := now[w.r.IntN(len(now))]
	if w.r.IntN(3) == 0 {
		w.event() // between the look at the map and the read
	}
	if !w.reaches(by, from) || !w.serves(from, w.node[by].view.Epoch) {
		return nil
	}
	got := w.node[from].has
	if w.fault != "no second look" && !slices.Contains(w.current(by), from) {
		return nil
	}
	w.reads++
	if got < least {
		return fmt.Errorf("%d reads %d from %d, but %d was acknowledged before", by, got, from, least)
	}
	return nil
}

func (w *world) event() {
	switch w.r.IntN(12) {
	case 0, 1, 2:
		w.now = w.now.Add(time.Duration(w.r.IntN(4000)) * time.Millisecond)
	case 3:
		w.lead()
	case 4, 5, 6:
		w.report(w.r.IntN(nodes))
	case 7, 8, 9:
		w.stepWrite()
	case 10:
		a, b := w.r.IntN(nodes), w.r.IntN(nodes)
		if w.r.IntN(3) == 0 {
			w.cut = [nodes][nodes]bool{}
		} else {
			w.cut[min(a, b)][max(a, b)] = a != b
		}
	case 11:
		i := 1 + w.r.IntN(nodes-1)
		w.node[i].stopped = !w.node[i].stopped && w.r.IntN(3) == 0
	}
}

// all reports whether every acknowledged byte can be read once all nodes answer again.
func (w *world) heal() error {
	w.cut = [nodes][nodes]bool{}
	for i := range w.node {
		w.node[i].stopped = false
	}
	for range 2 {
		for i := range nodes {
			w.report(i)
		}
	}
	for i := range nodes {
		n := &w.node[i]
		now := n.view.Current(nil, w.order, w.since)
		if len(now) == 0 {
			return fmt.Errorf("no copy is left in epoch %d: %v", n.view.Epoch, n.view.Nodes)
		}
		for _, c := range now {
			if w.node[c].has < w.acked {
				return fmt.Errorf("current copy %d has %d, but %d was acknowledged", c, w.node[c].has, w.acked)
			}
		}
	}
	return nil
}

func run(seed uint64, fault string) (w *world, err error) {
	w = newWorld(seed, fault)
	for range 250 {
		w.event()
		if err := w.read(); err != nil {
			return w, err
		}
	}
	return w, w.heal()
}

// TestSchedules: under random losses, partitions, returns, late answers and old maps no read returns older
// bytes than were acknowledged before it began, and none are lost.
func TestSchedules(t *testing.T) {
	reads, single := 0, 0
	for seed := range uint64(3000) {
		w, err := run(seed, "")
		if err != nil {
			for _, l := range w.log {
				t.Log(l)
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
		reads += w.reads
		if len(w.truth.Current(nil, w.order, w.since)) == 1 {
			single++
		}
	}
	if reads < 50_000 || single < 500 {
		t.Errorf("%d reads, %d schedules with the loss of a copy: the schedules show too little", reads, single)
	}
}

// TestPlantedFaults: the schedules find each part of the protocol that is left out.
func TestPlantedFaults(t *testing.T) {
	for _, fault := range []string{"a copy that returns counts", "one copy is enough", "no lease", "any reader", "no second look"} {
		t.Run(fault, func(t *testing.T) {
			for seed := range uint64(20_000) {
				if _, err := run(seed, fault); err != nil {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("not found")
		})
	}
}
