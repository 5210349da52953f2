package mirror

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
)

const (
	nodes = 4
	down  = 20 * time.Second // silence after which the leader gives a node up
	home  = 1
	keys  = 3
)

// records is versions of names.
type records map[int]int

// world is a job with one home. Node 0 leads and is never lost, but can be cut off from any other node.
type world struct {
	r         *rand.Rand
	now       time.Time
	truth     cluster.Map
	heard     [nodes]time.Time
	cut       [nodes][nodes]bool
	node      [nodes]node
	proposals []cluster.Partner // under way, maybe for long
	late      []sent            // messages under way, maybe for long
	gen       uint64
	version   int
	acked     records
	fault     string // a planted one
	reads     int
	log       []string

	// The home's disk, and its memory.
	store    records
	bound    cluster.Partner
	recorded bool // it says whether there is a partner
	h        *Home
	batches  map[*Batch]change
	order    []*Batch // those that are not applied
	under    *Message // sent and not acknowledged
	left     []change // records to send, read when the stream began
	sending  bool     // records are sent
}

type change struct{ key, version int }

type sent struct {
	to metadata.NodeID
	m  Message
	c  []change
}

type node struct {
	stopped bool
	view    cluster.Map
	lease   copies.Lease
	// Its disk: copies of the home.
	copies        Copies
	whole, coming records
}

func newWorld(seed uint64, fault string) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 2)), now: time.Unix(1e6, 0), fault: fault, acked: make(records), store: make(records), gen: 1}
	m := cluster.NewMap(seed, make([]string, nodes))
	for i := range nodes {
		m = m.WithState(metadata.NodeID(i), cluster.Up, "")
	}
	w.truth = m
	for i := range w.node {
		w.node[i].view, w.heard[i] = m, w.now
		w.node[i].lease.Renew(w.now, down)
	}
	w.restart()
	return w
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%3ds ", int(w.now.Unix()-1e6))+fmt.Sprintf(format, args...))
}

func (w *world) reaches(a, b metadata.NodeID) bool {
	return !w.node[a].stopped && !w.node[b].stopped && (a == b || !w.cut[min(a, b)][max(a, b)])
}

// restart starts the home's daemon again.
func (w *world) restart() {
	bound := w.bound
	if w.fault == "the disk does not know" {
		bound = cluster.Partner{}
	}
	w.h, w.batches, w.order, w.under, w.left, w.sending = NewHome(home, bound), make(map[*Batch]change), nil, nil, nil, false
	w.node[home].lease = copies.Lease{}
}

// wipe empties the home's disk and starts its daemon again, if the map has a partner: else its records are lost.
func (w *world) wipe() {
	if n, _ := w.truth.Node(home); n.Partner.Since == 0 || w.node[home].stopped {
		return
	}
	w.note("home is wiped")
	w.store, w.bound, w.recorded = make(records), cluster.Partner{}, false
	w.restart()
	w.node[home].view = cluster.Map{}
}

// learn has a blank home ask the leader whether it has a partner, and reports whether it is one no more.
func (w *world) learn() bool {
	if w.recorded || w.fault == "a wiped home serves" {
		return true
	}
	if !w.reaches(home, 0) {
		return false
	}
	w.node[home].view = w.truth
	if !Wiped(w.truth, home, false) {
		w.recorded = true
		return true
	}
	n, _ := w.truth.Node(home)
	n.Partner.StandsIn = true
	if w.r.IntN(3) > 0 {
		w.truth, _ = w.truth.WithPartner(home, n.Partner)
		w.note("home has itself replaced")
	}
	return false
}

// report is one report of a node. The leader answers with its map; the answer may be late.
func (w *world) report(i metadata.NodeID) {
	if !w.reaches(i, 0) {
		return
	}
	n, sent := &w.node[i], w.now
	w.heard[i] = w.now
	if s, _ := w.truth.Node(i); s.State == cluster.Down {
		w.truth = w.truth.WithState(i, cluster.Up, "")
		w.note("%d is back, epoch %d", i, w.truth.Epoch)
	}
	answer := w.truth
	if w.r.IntN(4) == 0 {
		w.now = w.now.Add(time.Duration(w.r.IntN(5)) * time.Second)
	}
	if answer.Epoch > n.view.Epoch {
		n.view = answer
	}
	n.lease.Renew(sent, down)
}

// lead is one look of the leader at the reports and the proposals.
func (w *world) lead() {
	for i := range nodes {
		id := metadata.NodeID(i)
		if s, _ := w.truth.Node(id); s.State != cluster.Down && i != 0 && w.now.Sub(w.heard[i]) > down {
			if h, _ := w.truth.Node(home); h.Partner.Node == id && !h.Partner.StandsIn && !w.recorded {
				w.acked = make(records) // both copies are lost
			}
			w.truth = w.truth.WithState(id, cluster.Down, "")
			w.note("%d is given up, epoch %d", i, w.truth.Epoch)
		}
	}
	if n := len(w.proposals); n > 0 && w.r.IntN(2) == 0 {
		i := w.r.IntN(n)
		p := w.proposals[i]
		if w.r.IntN(3) > 0 {
			w.proposals = append(w.proposals[:i], w.proposals[i+1:]...)
		}
		if m, ok := w.truth.WithPartner(home, p); ok {
			w.truth = m
			w.note("the map records partner %v, epoch %d", p, m.Epoch)
		}
	}
}

// stepHome is one step of the home.
func (w *world) stepHome() {
	n := &w.node[home]
	if n.stopped || !w.learn() {
		return
	}
	if w.h.See(n.view) {
		w.bound = cluster.Partner{}
		w.note("home is unbound")
	}
	if w.h.To().Since == 0 {
		w.under, w.sending = nil, false
		w.gen++
		if w.r.IntN(2) == 0 && w.h.Begin(n.view, w.gen) {
			w.note("stream %d to %v", w.gen, w.h.To())
			w.sending, w.left = true, nil
			w.readRecords()
		}
		return
	}
	if w.h.Complete() && w.h.Bound().Since == 0 {
		if w.fault != "the map before the disk" {
			w.bound, w.recorded = w.h.To(), true
		}
		w.proposals = append(w.proposals, w.h.To())
		if w.r.IntN(3) == 0 {
			w.restart()
			return
		}
		if w.fault != "records, and goes on unbound" {
			w.h.Bind(w.h.To())
		}
		w.bound = w.h.To()
		return
	}
	w.exchange()
}

// giveUp fails the changes that wait for a partner that does not answer.
func (w *world) giveUp() {
	w.note("home gives up changes")
	w.h.GiveUp()
	w.under, w.sending = nil, false
	w.order = slices.DeleteFunc(w.order, func(b *Batch) bool {
		if !w.h.May(b) {
			w.h.Done(b)
		}
		return !w.h.May(b)
	})
}

func (w *world) readRecords() {
	for k := range keys {
		if v := w.store[k]; v > 0 {
			w.left = append(w.left, change{k, v})
		}
	}
}

// exchange sends a message, or the last one again.
func (w *world) exchange() {
	if w.under == nil {
		m, ok := w.nextMessage()
		if !ok {
			if w.h.Bound().Since == 0 && w.r.IntN(8) == 0 {
				w.h.Abandon()
			}
			return
		}
		w.under = &m
	}
	to := w.h.To().Node
	s := sent{to: to, m: *w.under}
	if w.sending {
		s.c = w.left[:min(1, len(w.left))]
	}
	for _, b := range s.m.Batches {
		s.c = append(s.c[:len(s.c):len(s.c)], w.batches[b])
	}
	if w.r.IntN(6) == 0 {
		w.late = append(w.late, s)
	}
	if !w.reaches(home, to) || w.r.IntN(5) == 0 {
		return
	}
	v := w.accept(s)
	if w.r.IntN(5) == 0 {
		return // the answer is lost
	}
	switch v {
	case Accepted:
		w.h.Acked(*w.under)
		if w.sending {
			w.left = w.left[min(1, len(w.left)):]
			if len(w.left) == 0 {
				w.h.Copied()
				w.sending = false
			}
		}
		w.under = nil
	case Gap:
		w.note("gap")
		w.h.Abandon()
	case Replaced:
		w.note("home learns that it is replaced")
		w.h.Replace()
	}
}

func (w *world) nextMessage() (Message, bool) {
	if w.sending {
		return w.h.Record(), true
	}
	return w.h.Next(2)
}

// accept is a partner's handler.
func (w *world) accept(s sent) Verdict {
	p := &w.node[s.to]
	w.standIn(s.to)
	was := p.copies
	next, apply, v := p.copies.Accept(s.m)
	if w.fault == "any order" && v != Replaced && s.m.Gen == was.Whole.Gen {
		apply, v = true, Accepted
	}
	if !apply {
		return v
	}
	at := &p.coming
	if s.m.Gen == was.Whole.Gen {
		at = &p.whole
	} else if s.m.Seq == 1 {
		p.coming = make(records)
	}
	for _, c := range s.c {
		(*at)[c.key] = c.version
	}
	if next.Whole.Gen != was.Whole.Gen {
		p.whole, p.coming = p.coming, nil
		w.note("%d has a complete copy %d: %v", s.to, next.Whole.Gen, p.whole)
	}
	p.copies = next
	return v
}

// standIn has a node open its copy, if its map says so.
func (w *world) standIn(id metadata.NodeID) bool {
	p := &w.node[id]
	n, _ := p.view.Node(home)
	if !n.Partner.StandsIn || n.Partner.Node != id {
		return false
	}
	if !p.copies.Whole.Sealed && w.fault != "not sealed" {
		w.note("%d stands in with copy %d: %v", id, p.copies.Whole.Gen, p.whole)
		p.copies, _ = p.copies.Seal()
	}
	return true
}

// stepWrite begins a change, or applies one.
func (w *world) stepWrite() {
	at, ok := w.node[0].view.HomeAt(home)
	if !ok || w.node[at].stopped {
		return
	}
	key := w.r.IntN(keys)
	if at != home {
		if w.reaches(0, at) && w.standIn(at) {
			w.version++
			w.node[at].whole[key], w.acked[key] = w.version, w.version
		}
		return
	}
	if !w.learn() {
		return
	}
	for _, b := range w.order {
		c := w.batches[b]
		if w.h.May(b) && w.r.IntN(2) == 0 {
			w.store[c.key], w.acked[c.key] = c.version, c.version
			w.note("%v is acknowledged", c)
			w.h.Done(b)
			w.order = slices.DeleteFunc(w.order, func(o *Batch) bool { return o == b })
			return
		}
		if c.key == key {
			return // a change of the same name waits
		}
	}
	w.version++
	b := w.h.Add([]byte{0})
	w.batches[b], w.order = change{key, w.version}, append(w.order, b)
}

// read has a node read a name.
func (w *world) read(by metadata.NodeID) error {
	key := w.r.IntN(keys)
	least := w.acked[key]
	at, ok := w.node[by].view.HomeAt(home)
	if !ok || !w.reaches(by, at) {
		return nil
	}
	var got int
	switch {
	case at != home:
		if !w.standIn(at) {
			return nil
		}
		got = w.node[at].whole[key]
	case !w.learn():
		return nil
	case !w.h.Serves(w.node[home].view) && w.fault != "no second look", w.h.Bound().Since > 0 && !w.node[home].lease.Valid(w.now) && w.fault != "no lease":
		return nil
	default:
		got = w.store[key]
	}
	w.reads++
	if got < least {
		return fmt.Errorf("%d reads version %d of %d on %d, but %d was acknowledged before", by, got, key, at, least)
	}
	return nil
}

func (w *world) event() {
	switch w.r.IntN(20) {
	case 0, 1:
		w.now = w.now.Add(time.Duration(w.r.IntN(6000)) * time.Millisecond)
	case 2, 3:
		w.lead()
	case 4, 5, 6:
		w.report(metadata.NodeID(w.r.IntN(nodes)))
	case 7, 8, 9, 10:
		w.stepWrite()
	case 11, 12, 13, 14, 15:
		w.stepHome()
	case 16:
		a, b := w.r.IntN(nodes), w.r.IntN(nodes)
		if w.r.IntN(2) == 0 {
			w.cut = [nodes][nodes]bool{}
		} else {
			w.cut[min(a, b)][max(a, b)] = a != b
		}
	case 17:
		i := 1 + w.r.IntN(nodes-1)
		w.node[i].stopped = !w.node[i].stopped && w.r.IntN(3) == 0
	case 18:
		if w.r.IntN(6) == 0 {
			w.giveUp()
		}
		if w.r.IntN(3) == 0 {
			w.note("home restarts")
			w.restart()
		}
		if w.r.IntN(12) == 0 {
			w.wipe()
		}
	case 19:
		if n := len(w.late); n > 0 {
			i := w.r.IntN(n)
			if s := w.late[i]; !w.node[s.to].stopped {
				w.accept(s)
			}
		}
	}
}

// end loses the home or its partner for good, if the home has one, and wants all that was acknowledged.
func (w *world) end() error {
	lost := metadata.NodeID(nodes)
	n, _ := w.truth.Node(home)
	if p := n.Partner; p.Since > 0 && !p.StandsIn {
		if lost = home; p.Node > 0 && w.recorded && w.r.IntN(2) == 0 {
			lost = p.Node
		}
		w.note("%d is lost for good", lost)
	}
	w.cut = [nodes][nodes]bool{}
	w.proposals = nil
	for i := range w.node {
		w.node[i].stopped = metadata.NodeID(i) == lost
	}
	for range 40 {
		w.now = w.now.Add(time.Second)
		for i := range nodes {
			w.report(metadata.NodeID(i))
		}
		w.lead()
		w.learn()
	}
	at, ok := w.truth.HomeAt(home)
	got := w.store
	if at != home {
		got, ok = w.node[at].whole, ok && w.standIn(at)
	}
	for k, v := range w.acked {
		if !ok || got[k] < v {
			return fmt.Errorf("at the end %d has %v (%v), acknowledged was %v", at, got, ok, maps.Clone(w.acked))
		}
	}
	return nil
}

func run(seed uint64, fault string) (*world, error) {
	w := newWorld(seed, fault)
	for range 400 {
		w.event()
		if err := w.read(metadata.NodeID(w.r.IntN(nodes))); err != nil {
			return w, err
		}
	}
	return w, w.end()
}

// TestSchedules: under random losses, partitions, restarts, returns, late messages and old maps no read misses a
// change that was acknowledged before it, and none is lost with the home or its partner.
func TestSchedules(t *testing.T) {
	reads, standins, sealed := 0, 0, 0
	for seed := range uint64(1000) {
		w, err := run(seed, "")
		if err != nil {
			for _, l := range w.log {
				t.Log(l)
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
		reads += w.reads
		if n, _ := w.truth.Node(home); n.Partner.StandsIn {
			standins++
			if len(w.acked) == keys {
				sealed++
			}
		}
	}
	if reads < 50_000 || standins < 250 || sealed < 125 {
		t.Errorf("%d reads, %d stand-ins, %d with all names: the schedules show too little", reads, standins, sealed)
	}
}

// TestPlantedFaults: the schedules find each part of the protocol that is left out.
func TestPlantedFaults(t *testing.T) {
	for _, fault := range []string{
		"the disk does not know", "records, and goes on unbound", "any order", "not sealed", "no lease", "no second look", "the map before the disk",
		"a wiped home serves",
	} {
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
