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
	nodes = 5                // maximum
	down  = 20 * time.Second // silence after which the leader gives up a node
	home  = 1
	keys  = 3
)

// records maps names to versions.
type records map[int]int

// world is a job with one home. Node 0 leads and is never lost, but can be partitioned from other nodes.
type world struct {
	r         *rand.Rand
	n         int // nodes
	now       time.Time
	truth     cluster.Map
	history   []cluster.Map
	heard     [nodes]time.Time
	cut       [nodes][nodes]bool
	node      [nodes]node
	proposals []proposal // in flight, possibly for long
	late      []sent     // messages in flight, possibly for long
	gens      map[metadata.Epoch]uint64
	version   int
	acked     records
	fault     string // the planted fault
	reads     int
	log       []string
}

type proposal struct {
	seat metadata.Epoch
	p    cluster.Partner
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
	holder        *holder // the home, or its seat here; nil means none
}

// holder is the home, or a node that stands in for it.
type holder struct {
	at   metadata.NodeID
	seat metadata.Epoch

	// Its disk.
	store    records
	bound    cluster.Partner
	recorded bool // it has recorded whether there is a partner

	// Its memory.
	h       *Home
	batches map[*Batch]change
	order   []*Batch // those not yet applied
	under   *Message // sent and not acknowledged
	left    []change // records still to be sent, read when the stream began
	sending bool     // records are being sent
}

func newWorld(seed uint64, fault string) *world {
	r := rand.New(rand.NewPCG(seed, 2))
	w := &world{r: r, n: 3 + r.IntN(nodes-2), now: time.Unix(1e6, 0), fault: fault, acked: make(records), gens: make(map[metadata.Epoch]uint64)}
	if fault == "an old seat is kept" {
		w.n = 3 // else a node seldom has two seats
	}
	m := cluster.NewMap(seed, make([]string, w.n))
	for i := range w.n {
		m = m.WithState(metadata.NodeID(i), cluster.Up, "")
	}
	w.set(m)
	for i := range w.node {
		w.node[i].view, w.heard[i] = m, w.now
		w.node[i].lease.Renew(w.now, down)
	}
	w.node[home].holder = &holder{at: home, store: make(records)}
	w.restart(w.node[home].holder)
	return w
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%3ds ", int(w.now.Unix()-1e6))+fmt.Sprintf(format, args...))
}

// set lets the leader agree on a map.
func (w *world) set(m cluster.Map) { w.truth, w.history = m, append(w.history, m) }

func (w *world) reaches(a, b metadata.NodeID) bool {
	return !w.node[a].stopped && !w.node[b].stopped && (a == b || !w.cut[min(a, b)][max(a, b)])
}

// restart restarts a holder's daemon, possibly with an old map.
func (w *world) restart(hd *holder) {
	bound := hd.bound
	if w.fault == "the disk does not know" || w.fault == "a seat forgets its partner" && hd.seat > 0 {
		bound = cluster.Partner{}
	}
	hd.h, hd.batches, hd.order, hd.under, hd.left, hd.sending = NewHome(home, hd.seat, bound), make(map[*Batch]change), nil, nil, nil, false
	w.node[hd.at].lease = copies.Lease{}
	if w.r.IntN(2) == 0 && hd.recorded {
		w.node[hd.at].view = w.history[w.r.IntN(len(w.history))]
	}
}

// wipe empties the disk of the node that has the records and restarts its daemon, if the map has a second copy: without
// one they would be lost.
func (w *world) wipe() {
	n, _ := w.truth.Node(home)
	at, _ := w.truth.HomeAt(home)
	p := &w.node[at]
	if n.Second().Since == 0 || p.stopped || p.holder == nil {
		return
	}
	w.note("%d is wiped", at)
	p.copies, p.whole, p.coming, p.view, p.lease = Copies{}, nil, nil, cluster.Map{}, copies.Lease{}
	if p.holder = nil; at == home {
		p.holder = &holder{at: home, store: make(records)}
		w.restart(p.holder)
	}
}

// wiped reports whether the node that has the records by the leader's map has lost them.
func (w *world) wiped() bool {
	at, _ := w.truth.HomeAt(home)
	if at == home {
		n, _ := w.truth.Node(home)
		return n.Partner.Since > 0 && !w.node[home].holder.recorded
	}
	return !w.node[at].copies.Whole.Complete
}

// learn lets a wiped home ask the leader whether it has a partner, and reports whether the home may serve.
func (w *world) learn() bool {
	hd := w.node[home].holder
	if hd.recorded || w.fault == "a wiped home serves" {
		return true
	}
	if !w.reaches(home, 0) {
		return false
	}
	w.node[home].view = w.truth
	if !Wiped(w.truth, home, false) {
		hd.recorded = true
		return true
	}
	n, _ := w.truth.Node(home)
	n.Partner.StandsIn = true
	if w.r.IntN(3) > 0 {
		if m, ok := w.truth.WithPartner(home, 0, n.Partner); ok {
			w.set(m)
			w.note("home has itself replaced")
		}
	}
	return false
}

// report sends one report of a node. The leader answers with its map; the reply may be late.
func (w *world) report(i metadata.NodeID) {
	if !w.reaches(i, 0) {
		return
	}
	n, sent := &w.node[i], w.now
	w.heard[i] = w.now
	if s, _ := w.truth.Node(i); s.State == cluster.Down {
		w.set(w.truth.WithState(i, cluster.Up, ""))
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

// lead lets the leader process the reports and the proposals once.
func (w *world) lead() {
	for i := range w.n {
		id := metadata.NodeID(i)
		if s, _ := w.truth.Node(id); s.State != cluster.Down && i != 0 && w.now.Sub(w.heard[i]) > down {
			if h, _ := w.truth.Node(home); h.Second().Since > 0 && h.Second().Node == id && w.wiped() {
				w.acked = make(records) // both copies are lost
			}
			w.set(w.truth.WithState(id, cluster.Down, ""))
			w.note("%d is given up, epoch %d", i, w.truth.Epoch)
		}
	}
	if n := len(w.proposals); n > 0 && w.r.IntN(2) == 0 {
		i := w.r.IntN(n)
		p := w.proposals[i]
		if w.r.IntN(3) > 0 {
			w.proposals = append(w.proposals[:i], w.proposals[i+1:]...)
		}
		w.record(p)
	}
}

// record applies a proposal to the map.
func (w *world) record(p proposal) {
	m, ok := w.truth.WithPartner(home, p.seat, p.p)
	if h, _ := w.truth.Node(home); w.fault == "any seat" && !ok && h.Partner.StandsIn && h.Partner.Node != p.p.Node && !p.p.StandsIn && w.truth.ServesSince(p.p.Node, p.p.Since) {
		m, ok = w.truth.WithState(0, cluster.Up, ""), true
		m.Nodes[home].Heir = p.p
	}
	if ok {
		w.set(m)
		w.note("the map records %v of seat %d, epoch %d", p.p, p.seat, m.Epoch)
	}
}

// open returns the holder that a node has and may open by its own map; nil means none.
func (w *world) open(id metadata.NodeID) *holder {
	p := &w.node[id]
	switch {
	case p.stopped:
		return nil
	case id != home:
		return w.standIn(id)
	case !w.learn():
		return nil
	}
	return p.holder
}

// standIn lets a node open its copy, if its map says so, and give up an old one.
func (w *world) standIn(id metadata.NodeID) *holder {
	p := &w.node[id]
	n, _ := p.view.Node(home)
	seat := n.Seat()
	if p.copies.Outdated(seat.Since) && w.fault != "an old seat is kept" {
		if w.r.IntN(2) == 0 {
			return nil
		}
		w.note("%d gives up its seat %d", id, p.copies.Whole.Sealed)
		p.copies, p.whole, p.holder = Copies{}, nil, nil
	}
	if seat.Since == 0 || seat.Node != id {
		return nil
	}
	next, ok := p.copies.Seal(seat.Since)
	if w.fault == "an old seat is kept" && !ok && p.copies.Whole.Complete {
		next, ok = p.copies, true
		next.Whole.Sealed = seat.Since
	}
	if !ok {
		if n.Heir.Since > 0 && w.reaches(id, 0) && w.r.IntN(3) == 0 {
			n.Heir.StandsIn = true
			w.proposals = append(w.proposals, proposal{seat.Since, n.Heir})
		}
		return nil
	}
	if p.copies = next; p.holder == nil || p.holder.seat != seat.Since {
		w.note("%d stands in with copy %d: %v", id, p.copies.Whole.Gen, p.whole)
		p.holder = &holder{at: id, seat: seat.Since, store: p.whole, recorded: true}
		p.holder.h, p.holder.batches = NewHome(home, seat.Since, cluster.Partner{}), make(map[*Batch]change)
	}
	return p.holder
}

// serves reports whether a holder may serve requests.
func (w *world) serves(hd *holder) bool {
	n := &w.node[hd.at]
	lease := hd.h.Bound().Since == 0 || n.lease.Valid(w.now) || w.fault == "no lease" || w.fault == "a seat needs no lease" && hd.seat > 0
	return lease && (hd.h.Serves(n.view) || w.fault == "no second look")
}

// step performs one step of a node's holder.
func (w *world) step(id metadata.NodeID) {
	hd, n := w.open(id), &w.node[id]
	if hd == nil {
		return
	}
	if hd.h.See(n.view) {
		hd.bound = cluster.Partner{}
		w.note("%d is unbound", id)
	}
	if hd.h.To().Since == 0 {
		hd.under, hd.sending = nil, false
		w.gens[hd.seat]++
		if w.r.IntN(2) == 0 && hd.h.Begin(n.view, w.gens[hd.seat]) {
			w.note("stream %d of %d to %v", w.gens[hd.seat], id, hd.h.To())
			hd.sending, hd.left = true, nil
			for k := range keys {
				if v := hd.store[k]; v > 0 {
					hd.left = append(hd.left, change{k, v})
				}
			}
		}
		return
	}
	if s, _ := n.view.Node(home); hd.h.Bound().Since > 0 && s.Second() != hd.h.Bound() && w.r.IntN(8) == 0 {
		w.proposals = append(w.proposals, proposal{hd.seat, hd.h.Bound()})
	}
	if hd.h.Complete() && hd.h.Bound().Since == 0 {
		w.bind(hd)
		return
	}
	w.exchange(hd)
}

// bind binds a holder to the partner of its stream.
func (w *world) bind(hd *holder) {
	if w.fault != "the map before the disk" {
		hd.bound, hd.recorded = hd.h.To(), true
	}
	w.proposals = append(w.proposals, proposal{hd.seat, hd.h.To()})
	if w.r.IntN(3) == 0 {
		w.restart(hd)
		return
	}
	if w.fault != "records, and goes on unbound" {
		hd.h.Bind(hd.h.To())
	}
	hd.bound = hd.h.To()
}

// giveUp fails the changes that wait for a partner that does not answer.
func (w *world) giveUp(hd *holder) {
	w.note("%d gives up changes", hd.at)
	hd.h.GiveUp()
	hd.under, hd.sending = nil, false
	hd.order = slices.DeleteFunc(hd.order, func(b *Batch) bool {
		if !hd.h.May(b) {
			hd.h.Done(b)
		}
		return !hd.h.May(b)
	})
}

// exchange sends the next message, or repeats the last one.
func (w *world) exchange(hd *holder) {
	if hd.under == nil {
		m, ok := hd.next(w.r.IntN(4) == 0)
		if !ok {
			if hd.h.Bound().Since == 0 && w.r.IntN(8) == 0 {
				hd.h.Abandon()
			}
			return
		}
		hd.under = &m
	}
	to := hd.h.To().Node
	s := sent{to: to, m: *hd.under}
	if hd.sending {
		s.c = hd.left[:min(1, len(hd.left))]
	}
	for _, b := range s.m.Batches {
		s.c = append(s.c[:len(s.c):len(s.c)], hd.batches[b])
	}
	if w.r.IntN(6) == 0 {
		w.late = append(w.late, s)
	}
	if !w.reaches(hd.at, to) || w.r.IntN(5) == 0 {
		return
	}
	v := w.accept(s)
	if w.r.IntN(5) == 0 {
		return // the reply is lost
	}
	switch v {
	case Accepted:
		hd.h.Acked(*hd.under)
		if hd.sending {
			hd.left = hd.left[min(1, len(hd.left)):]
			if len(hd.left) == 0 {
				hd.h.Copied()
				hd.sending = false
			}
		}
		hd.under = nil
	case Gap:
		w.note("gap")
		w.gens[hd.seat] = max(w.gens[hd.seat], w.node[to].copies.Last())
		hd.h.Abandon()
	case Replaced:
		w.note("%d learns that it is replaced", hd.at)
		hd.h.Replace()
	}
}

func (hd *holder) next(idle bool) (Message, bool) {
	if hd.sending {
		return hd.h.Record(), true
	}
	if m, ok := hd.h.Next(2); ok || !idle {
		return m, ok
	}
	return hd.h.Probe()
}

// accept handles a message at a partner.
func (w *world) accept(s sent) Verdict {
	p := &w.node[s.to]
	if s.to != home {
		w.standIn(s.to)
	}
	if !p.lease.Begun() && w.fault != "a node takes a copy by an old map" {
		return Later
	}
	was := p.copies
	n, _ := p.view.Node(home)
	next, apply, v := p.copies.Accept(s.m, n.Seat().Since)
	switch {
	case w.fault == "any order" && v != Replaced && v != Later && was.Whole.Of(s.m):
		apply, v = true, Accepted
	case w.fault == "an old seat is kept" && v == Later && was.Whole.Sealed > 0:
		return Accepted
	}
	if !apply {
		return v
	}
	at := &p.coming
	if was.Whole.Of(s.m) {
		at = &p.whole
	} else if s.m.Seq == 1 {
		p.coming = make(records)
	}
	for _, c := range s.c {
		(*at)[c.key] = c.version
	}
	if next.Whole.Newer(was.Whole) {
		p.whole, p.coming = p.coming, nil
		w.note("%d has a complete copy %d of seat %d: %v", s.to, next.Whole.Gen, next.Whole.Seat, p.whole)
	}
	p.copies = next
	return v
}

// stepWrite begins a change at the node given by a node's map, or applies one there.
func (w *world) stepWrite() {
	by := metadata.NodeID(w.r.IntN(w.n))
	at, ok := w.node[by].view.HomeAt(home)
	if !ok || !w.reaches(by, at) {
		return
	}
	hd := w.open(at)
	if hd == nil {
		return
	}
	key := w.r.IntN(keys)
	for _, b := range hd.order {
		c := hd.batches[b]
		if hd.h.May(b) && w.r.IntN(2) == 0 {
			hd.store[c.key], w.acked[c.key] = c.version, max(c.version, w.acked[c.key])
			w.note("%v is acknowledged by %d", c, at)
			hd.h.Done(b)
			hd.order = slices.DeleteFunc(hd.order, func(o *Batch) bool { return o == b })
			return
		}
		if c.key == key {
			return // a change of the same name is waiting
		}
	}
	w.version++
	b := hd.h.Add([]byte{0})
	hd.batches[b], hd.order = change{key, w.version}, append(hd.order, b)
}

// read lets a node read a name.
func (w *world) read(by metadata.NodeID) error {
	key := w.r.IntN(keys)
	least := w.acked[key]
	at, ok := w.node[by].view.HomeAt(home)
	if !ok || !w.reaches(by, at) {
		return nil
	}
	hd := w.open(at)
	if hd == nil || !w.serves(hd) {
		return nil
	}
	w.reads++
	if got := hd.store[key]; got < least {
		return fmt.Errorf("%d reads version %d of %d on %d, but %d was acknowledged before", by, got, key, at, least)
	}
	return nil
}

func (w *world) event() {
	id := metadata.NodeID(w.r.IntN(w.n))
	switch w.r.IntN(20) {
	case 0, 1:
		w.now = w.now.Add(time.Duration(w.r.IntN(6000)) * time.Millisecond)
	case 2, 3:
		w.lead()
	case 4, 5, 6:
		w.report(id)
	case 7, 8, 9, 10:
		w.stepWrite()
	case 11, 12, 13, 14, 15:
		for i := range w.n {
			w.step(metadata.NodeID(i))
		}
	case 16:
		b := metadata.NodeID(w.r.IntN(w.n))
		if w.r.IntN(2) == 0 {
			w.cut = [nodes][nodes]bool{}
		} else {
			w.cut[min(id, b)][max(id, b)] = id != b
		}
	case 17:
		if id > 0 {
			w.node[id].stopped = !w.node[id].stopped && w.r.IntN(3) == 0
		}
	case 18:
		for i := range w.node {
			hd := w.node[i].holder
			if hd == nil {
				continue
			}
			if w.r.IntN(6) == 0 {
				w.giveUp(hd)
			}
			if w.r.IntN(3) == 0 {
				w.note("%d restarts", i)
				w.restart(hd)
			}
		}
		if w.r.IntN(12) == 0 {
			w.wipe()
		}
	case 19:
		if n := len(w.late); n > 0 {
			if s := w.late[w.r.IntN(n)]; !w.node[s.to].stopped {
				w.accept(s)
			}
		}
	}
}

// end loses nodes for good: each time the node that has the records, or the one with the second copy, once there is
// one. It wants a second copy again each time, with every acknowledged change.
func (w *world) end() error {
	w.cut = [nodes][nodes]bool{}
	w.proposals = nil
	for i := range w.node {
		w.node[i].stopped = false
	}
	for losses := 0; ; losses++ {
		if err := w.settle(); err != nil || losses == 2 || w.wiped() {
			return err
		}
		n, _ := w.truth.Node(home)
		if n.Second().Since == 0 {
			return nil // no other node can take a copy
		}
		at, _ := w.truth.HomeAt(home)
		lost := n.Second().Node
		if at != 0 && (lost == 0 || w.r.IntN(2) == 0) {
			lost = at
		}
		w.note("%d is lost for good", lost)
		w.node[lost].stopped = true
		if err := w.settle(); err != nil {
			return err
		}
	}
}

// settle waits until the map has a second copy, and checks the records.
func (w *world) settle() error {
	second := func() bool { n, _ := w.truth.Node(home); return n.Second().Since > 0 }
	can := func() bool { _, ok := w.truth.NextPartner(home); return ok }
	for i := 0; i < 60 || can() && !second() && i < 400; i++ {
		w.now = w.now.Add(time.Second)
		for i := range w.n {
			w.report(metadata.NodeID(i))
			w.step(metadata.NodeID(i))
		}
		w.lead()
	}
	at, ok := w.truth.HomeAt(home)
	hd := w.node[at].holder
	switch {
	case w.wiped() && !second():
		return nil
	case !ok || hd == nil || w.open(at) == nil || can() && !second():
		n, _ := w.truth.Node(home)
		return fmt.Errorf("at the end %d has the records (%v), and %v a copy", at, ok, n.Second())
	}
	for k, v := range w.acked {
		if hd.store[k] < v {
			return fmt.Errorf("at the end %d has %v, acknowledged was %v", at, hd.store, maps.Clone(w.acked))
		}
	}
	return nil
}

func run(seed uint64, fault string) (*world, error) {
	w := newWorld(seed, fault)
	for range 400 {
		w.event()
		if err := w.read(metadata.NodeID(w.r.IntN(w.n))); err != nil {
			return w, err
		}
	}
	return w, w.end()
}

// TestSchedules: under random losses, partitions, restarts, returns, late messages and old maps no read misses a change
// that was acknowledged before it, and none is lost when the nodes that have the records are lost one after another,
// provided that there are two copies again each time. There always are.
func TestSchedules(t *testing.T) {
	reads, seats := 0, make(map[int]int)
	for seed := range uint64(400) {
		w, err := run(seed, "")
		if err != nil {
			for _, l := range w.log {
				t.Log(l)
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
		reads += w.reads
		had, last := 0, metadata.Epoch(0)
		for _, m := range w.history {
			if n, _ := m.Node(home); n.Seat().Since > last {
				had, last = had+1, n.Seat().Since
			}
		}
		seats[had]++
	}
	t.Logf("%d reads, schedules by the number of seats: %v", reads, seats)
	if reads < 30_000 || seats[1] < 50 || seats[2] < 50 || seats[3] < 20 {
		t.Errorf("%d reads, %v seats: the schedules show too little", reads, seats)
	}
}

// TestPlantedFaults: the schedules detect the omission of any part of the protocol.
func TestPlantedFaults(t *testing.T) {
	for _, fault := range []string{
		"the disk does not know", "records, and goes on unbound", "any order", "no lease", "no second look", "the map before the disk",
		"a wiped home serves", "any seat", "an old seat is kept", "a seat needs no lease", "a seat forgets its partner",
		"a node takes a copy by an old map",
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
