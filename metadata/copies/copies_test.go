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
	nodes  = 5
	blocks = 2
	down   = 20 * time.Second // silence after which the leader gives up a node
)

// world is a job with one file of some blocks. Node 0 leads; it is never lost, but can be partitioned from other nodes.
type world struct {
	r            *rand.Rand
	now          time.Time
	first, truth cluster.Map
	heard        [nodes]time.Time      // when the leader last received a report of each node
	whole        [nodes]metadata.Epoch // from each node's last report: it has made all copies by the map of this epoch
	cut          [nodes][nodes]bool
	node         [nodes]node
	part         cluster.Part
	known        map[metadata.Epoch]cluster.Copies // by epoch

	late         []call      // calls given up by their senders
	begun, acked [blocks]int // versions of each block
	write        *writing
	fault        string // the planted fault
	reads, made  int
	log          []string
}

type node struct {
	stopped bool
	leaves  bool
	view    cluster.Map
	lease   *Lease
	fence   *Fence
	has     [blocks]int // the version of each block of its copy; 0 means none
	whole   metadata.Epoch
	making  *making
	intake  *Intake
	run     metadata.Run
	tries   uint64
}

// making is a copy in progress from one node to another.
type making struct {
	to   cluster.Copy
	next int // next block
	call     // while it is in flight, no write of the block can intervene
	sent bool
}

// call transfers one range of a copy under construction, with the version that was read.
type call struct {
	Range
	to  metadata.NodeID
	got int
}

// writing is a write in progress by a node.
type writing struct {
	by             metadata.NodeID
	block, version int
	Write
}

func newWorld(seed uint64, fault string) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 1)), now: time.Unix(1e6, 0), fault: fault, known: make(map[metadata.Epoch]cluster.Copies)}
	m := cluster.NewMap(seed, make([]string, nodes))
	for i := range nodes {
		m = m.WithState(metadata.NodeID(i), cluster.Up, "")
	}
	w.truth, w.first = m, m
	l := metadata.Layout{Kind: metadata.Local, Node: metadata.NodeID(1 + w.r.IntN(nodes-1)), Copies: 2, Epoch: m.Epoch}
	if w.r.IntN(2) == 0 {
		l = metadata.Layout{Width: 1, Copies: 2, Epoch: m.Epoch}
	}
	ino := metadata.LiveIno(metadata.NodeID(w.r.IntN(nodes)), 2000+seed)
	w.part = cluster.Parts(ino, l, m.Order(ino, l))[0]
	for i := range w.node {
		w.node[i].view = m
		w.heard[i] = w.now
		w.begin(i)
		w.node[i].lease.Renew(w.now, down)
	}
	return w
}

// begin starts a run of a node, without memory of the previous run.
func (w *world) begin(i int) {
	n := &w.node[i]
	w.giveUp(n)
	n.lease, n.fence, n.whole, n.intake, n.tries = new(Lease), new(Fence), 0, new(Intake), 0
	n.run++
	w.late = slices.DeleteFunc(w.late, func(c call) bool { return int(c.to) == i })
	if w.r.IntN(2) == 0 {
		n.view = w.first
	}
	if w.write != nil && w.write.by == metadata.NodeID(i) {
		w.write = nil
	}
}

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%3ds ", int(w.now.Unix()-1e6))+fmt.Sprintf(format, args...))
}

func (w *world) reaches(a, b metadata.NodeID) bool {
	return !w.node[a].stopped && !w.node[b].stopped && (a == b || !w.cut[min(a, b)][max(a, b)])
}

// report sends one report of a node. The leader answers with its map; the reply may be late.
func (w *world) report(i int) {
	if !w.reaches(metadata.NodeID(i), 0) {
		return
	}
	n, sent := &w.node[i], w.now
	w.heard[i], w.whole[i] = w.now, n.whole
	switch s, _ := w.truth.Node(metadata.NodeID(i)); {
	case s.State == cluster.Down && n.leaves:
		w.truth = w.truth.WithState(s.ID, cluster.Leaving, "")
		w.note("%d is back and leaves, epoch %d", i, w.truth.Epoch)
	case s.State == cluster.Down:
		w.truth = w.truth.WithState(s.ID, cluster.Up, "")
		w.note("%d is back, epoch %d", i, w.truth.Epoch)
	case s.State == cluster.Up && w.r.IntN(120) == 0:
		n.leaves = true
		w.truth = w.truth.WithState(s.ID, cluster.Leaving, "")
		w.note("%d leaves, epoch %d", i, w.truth.Epoch)
	}
	answer := w.truth
	if w.r.IntN(4) == 0 {
		w.now = w.now.Add(time.Duration(w.r.IntN(5)) * time.Second) // the reply is in flight
	}
	if answer.Epoch > n.view.Epoch {
		n.view = answer
	}
	if n.intake.Over(n.view) {
		n.intake = new(Intake)
	}
	n.lease.Renew(sent, down)
}

// lead lets the leader process the reports once.
func (w *world) lead() {
	all := true
	for i := range nodes {
		id := metadata.NodeID(i)
		s, _ := w.truth.Node(id)
		if s.State != cluster.Down && i != 0 && w.now.Sub(w.heard[i]) > down {
			w.truth = w.truth.WithState(id, cluster.Down, "")
			w.note("%d is given up, epoch %d", i, w.truth.Epoch)
		}
	}
	for i, n := range w.truth.Nodes {
		all = all && (n.State == cluster.Down || w.whole[i] >= w.truth.Changed())
	}
	if w.fault == "restored too early" {
		all = true
	}
	if m, ok := w.truth.WithRestored(w.truth.Changed()); all && ok {
		if w.fault == "files of a lost home count" {
			m.Restored[len(m.Restored)-1].Without = nil
		}
		w.truth = m
		w.made++
		w.note("restored, epoch %d: %+v", m.Epoch, m.CopiesOf(w.part))
	}
}

// copiesOf is m.CopiesOf with a cache: each epoch has one map.
func (w *world) copiesOf(m cluster.Map) cluster.Copies {
	c, ok := w.known[m.Epoch]
	if !ok {
		c = m.CopiesOf(w.part)
		w.known[m.Epoch] = c
	}
	c.Current = slices.Clone(c.Current)
	return c
}

func (w *world) copies(id metadata.NodeID) cluster.Copies {
	n := &w.node[id]
	c := w.copiesOf(n.view)
	switch w.fault {
	case "a copy that returns counts":
		c.Current = nil
		for _, x := range w.part.Copies {
			if s, _ := n.view.Node(x); s.State != cluster.Down {
				c.Current = append(c.Current, cluster.Copy{Node: x})
			}
		}
	case "what is made is written at once":
		c.Current, c.Filling = append(c.Current, c.Filling...), nil
	case "what is made is not written":
		c.Filling = nil
	}
	return c
}

// stepWrite begins a write, or sends it to one copy, or acknowledges it. The writer may be lost at any time.
func (w *world) stepWrite() {
	if w.write == nil || w.node[w.write.by].stopped {
		by, k := metadata.NodeID(w.r.IntN(nodes)), w.r.IntN(blocks)
		if w.node[by].stopped {
			return
		}
		w.begun[k]++
		w.write = &writing{by: by, block: k, version: w.begun[k]}
		w.note("%d writes %d:%d", by, k, w.begun[k])
		return
	}
	x := w.write
	now := w.copies(x.by)
	missing := x.Next(now)
	if len(now.Current) == 0 {
		return // waits for a copy to return
	}
	if len(missing) == 0 || w.fault == "one copy is enough" && len(missing) < len(now.Current) {
		w.acked[x.block], w.write = x.version, nil
		w.note("%d:%d is acknowledged by %v", x.block, x.version, now)
		return
	}
	to := missing[w.r.IntN(len(missing))]
	if w.reaches(x.by, to.Node) && w.accepts(to.Node, w.node[x.by].view.Epoch, x.block) {
		w.node[to.Node].has[x.block] = x.version
		x.Done(now, to)
		w.note("%d has %d:%d", to, x.block, x.version)
	}
}

// accepts is the check of a node that has a copy before a write.
func (w *world) accepts(c metadata.NodeID, writer metadata.Epoch, block int) bool {
	n := &w.node[c]
	if m := n.making; m != nil && m.sent && (m.Seq == 0 || m.next == block) && w.fault != "writes while a block is copied" {
		return false
	}
	switch w.fault {
	case "no fence":
		return true
	case "a fence that a restart forgets":
		return n.fence.Admits(writer, cluster.Map{}, n.lease)
	}
	return n.fence.Admits(writer, n.view, n.lease)
}

// make performs one step of a node that makes copies.
func (w *world) make(i int) {
	n, self := &w.node[i], metadata.NodeID(i)
	s, _ := n.view.Node(self)
	changed := n.view.Changed()
	if n.stopped || s.State == cluster.Down || n.whole >= changed || !n.lease.Valid(w.now) && w.fault != "copies without a lease" {
		if !n.stopped {
			w.giveUp(n)
		}
		return
	}
	n.fence.Raise(changed)
	c := w.copiesOf(n.view)
	from, due := Source(c)
	switch m := n.making; {
	case !due || from != self || !n.view.HomeServes(w.part.Ino.Home()): // the home knows if the file exists
		w.giveUp(n)
		n.whole = changed
	case m == nil || m.By != changed || m.to != c.Filling[0]:
		w.giveUp(n)
		n.tries++
		n.making = &making{to: c.Filling[0], call: call{Range{changed, n.run, n.tries, 0}, c.Filling[0].Node, 0}, sent: true}
		w.note("%d makes a copy on %v", i, c.Filling[0])
	case m.next == blocks:
		n.whole, n.making = changed, nil
		w.note("%d has made it, epoch %d", i, changed)
	case !m.sent:
		m.Seq++
		m.got, m.sent = n.has[m.next], true
	case w.reaches(self, m.to.Node) && w.arrive(m.call):
		if m.Seq > 0 {
			m.next++
		}
		m.sent = false
	default:
		w.giveUp(n)
	}
}

// giveUp ends the copy that n makes. A call in flight may arrive later.
func (w *world) giveUp(n *node) {
	if n.making != nil && n.making.sent {
		w.late = append(w.late, n.making.call)
	}
	n.making = nil
}

// arrive handles a range of a copy that is being made on a node.
func (w *world) arrive(c call) bool {
	n := &w.node[c.to]
	taken := n.lease.Begun() && Wanted(c.By, n.view) && n.intake.Take(c.Range)
	if !taken && w.fault != "late ranges are stored" {
		return false
	}
	if w.note("%v gets %+v", c.to, c); c.Seq == 0 {
		n.has = [blocks]int{}
	} else {
		n.has[c.Seq-1] = c.got
	}
	return true
}

// serves is the check of a node that has a copy before a read.
func (w *world) serves(c metadata.NodeID, reader metadata.Epoch) bool {
	n := &w.node[c]
	self, _ := n.view.Node(c)
	if !n.lease.Valid(w.now) && w.fault != "no lease" {
		return false
	}
	return Serves(self, reader) || w.fault == "any reader"
}

func has(c cluster.Copies, id metadata.NodeID) bool {
	return slices.ContainsFunc(c.Current, func(x cluster.Copy) bool { return x.Node == id })
}

// read lets a node read a block from one current copy, with an event in between.
func (w *world) read() error {
	by, k := metadata.NodeID(w.r.IntN(nodes)), w.r.IntN(blocks)
	least := w.acked[k]
	now := w.copies(by).Current
	if w.node[by].stopped || len(now) == 0 {
		return nil
	}
	from := now[w.r.IntN(len(now))].Node
	if w.r.IntN(3) == 0 {
		w.event() // between the lookup in the map and the read
	}
	if !w.reaches(by, from) || !w.serves(from, w.node[by].view.Epoch) {
		return nil
	}
	got := w.node[from].has[k]
	if w.fault != "no second look" && !has(w.copies(by), from) {
		return nil
	}
	w.reads++
	if got < least {
		return fmt.Errorf("%d reads %d:%d from %d, but %d was acknowledged before", by, k, got, from, least)
	}
	return nil
}

func (w *world) event() {
	switch w.r.IntN(17) {
	case 0, 1, 2:
		w.now = w.now.Add(time.Duration(w.r.IntN(4000)) * time.Millisecond)
	case 3:
		w.lead()
	case 4, 5, 6, 7:
		w.report(w.r.IntN(nodes))
	case 8, 9, 10:
		w.stepWrite()
	case 11:
		a, b := w.r.IntN(nodes), w.r.IntN(nodes)
		if w.write != nil && w.r.IntN(2) == 0 {
			a, b = 0, int(w.write.by) // the writer then keeps its map
		}
		if w.r.IntN(3) == 0 {
			w.cut = [nodes][nodes]bool{}
		} else {
			w.cut[min(a, b)][max(a, b)] = a != b
		}
	case 12:
		i := 1 + w.r.IntN(nodes-1)
		if w.node[i].stopped = !w.node[i].stopped && w.r.IntN(3) == 0; w.r.IntN(2) == 0 {
			w.begin(i) // it is killed, and restarts later
		}
	default:
		w.restore()
	}
}

// restore lets time pass in which nodes make copies and report.
func (w *world) restore() {
	for range 1 + w.r.IntN(12) {
		if len(w.late) > 0 && w.r.IntN(4) == 0 {
			k := w.r.IntN(len(w.late))
			if c := w.late[k]; !w.node[c.to].stopped {
				w.late = slices.Delete(w.late, k, k+1)
				w.arrive(c)
			}
		}
		i := w.r.IntN(nodes)
		w.make(i)
		if w.r.IntN(3) == 0 {
			w.stepWrite()
		}
		if w.r.IntN(2) == 0 {
			w.report(i)
		}
	}
	w.lead()
}

// heal checks that every acknowledged byte can be read once all nodes are reachable again.
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
		now := n.view.CopiesOf(w.part).Current
		if len(now) == 0 {
			return fmt.Errorf("no copy is left in epoch %d: %v", n.view.Epoch, n.view.Nodes)
		}
		for _, c := range now {
			for k := range blocks {
				if got := w.node[c.Node].has[k]; got < w.acked[k] {
					return fmt.Errorf("current copy %v has %d:%d, but %d was acknowledged", c, k, got, w.acked[k])
				}
			}
		}
	}
	return nil
}

func run(seed uint64, fault string) (w *world, err error) {
	w = newWorld(seed, fault)
	for range 200 {
		w.event()
		if err := w.read(); err != nil {
			return w, err
		}
	}
	return w, w.heal()
}

// TestSchedules: under random losses, partitions, restarts, returns, late replies and old maps, while lost copies are
// replaced, no read returns older bytes than were acknowledged before it began, and no acknowledged byte is lost.
func TestSchedules(t *testing.T) {
	reads, single, made := 0, 0, 0
	for seed := range uint64(400) {
		w, err := run(seed, "")
		if err != nil {
			for _, l := range w.log {
				t.Log(l)
			}
			t.Fatalf("seed %d: %v", seed, err)
		}
		reads, made = reads+w.reads, made+w.made
		if len(w.truth.CopiesOf(w.part).Current) == 1 {
			single++
		}
	}
	t.Logf("%d reads, copies made %d times, %d schedules end with one", reads, made, single)
	if reads < 30_000 || single < 80 || made < 400 {
		t.Error("the schedules show too little")
	}
}

// TestPlantedFaults: the schedules detect the omission of any part of the protocol.
func TestPlantedFaults(t *testing.T) {
	for _, fault := range []string{
		"a copy that returns counts", "one copy is enough", "no lease", "any reader", "no second look",
		"restored too early", "what is made is written at once", "what is made is not written", "no fence",
		"a fence that a restart forgets", "copies without a lease", "writes while a block is copied", "late ranges are stored",
		"files of a lost home count",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
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
