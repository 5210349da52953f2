package opens

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

var (
	histories   = flag.Int("histories", 3000, "random histories of TestRandomHistories")
	historySeed = flag.Uint64("history-seed", 0, "the only history to run; 0 is all")
)

const historyFile = metadata.Ino(1000)

// simClient is a node that appends to historyFile.
type simClient struct {
	id    metadata.NodeID
	run   metadata.Run
	seq   uint64
	app   appends.Client
	phase string // "", "reserve", "write" or "sync"
	q     metadata.Append
	off   int64
	acks  []int // written appends that wait for a sync
}

// simMessage is a request, a reply or a report in flight.
type simMessage struct {
	kind  string // "request", "placing", "reply", "ask" or "report"
	node  metadata.NodeID
	run   metadata.Run // of the client
	home  metadata.Run // "placing", "ask", "report": of the home it is meant for
	asked uint64       // "request", "placing", "reply": the client's reports when it was sent
	q     metadata.Append
	was   round
	size  int64
	place metadata.Place
	err   error
	files []metadata.Opened
}

// simAppend is one append of a client: acked is set when fsync has returned.
type simAppend struct {
	node  metadata.NodeID
	ext   metadata.Extent
	acked bool
}

// sim is a home, its store, its clients and the network between them.
type sim struct {
	t       *testing.T
	rng     *rand.Rand
	seed    uint64
	home    *Registry // nil while the home's process is dead
	homeRun metadata.Run
	size    int64 // in the home's store, which survives
	cells   []int // by offset: 1 + index of the append that last wrote it; 0 is a hole
	appends []simAppend
	clients []*simClient
	net     []simMessage
	log     []string
}

func (s *sim) note(format string, a ...any) {
	if l := fmt.Sprintf(format, a...); len(s.log) == 0 || s.log[len(s.log)-1] != l {
		s.log = append(s.log, l)
	}
}

func (s *sim) fail(format string, a ...any) {
	s.t.Helper()
	for _, l := range s.log[max(0, len(s.log)-80):] {
		s.t.Log(l)
	}
	s.t.Fatalf("seed %d: %s", s.seed, fmt.Sprintf(format, a...))
}

func newSim(t *testing.T, seed uint64) *sim {
	s := &sim{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), homeRun: 1}
	s.home = NewRegistry(func() {}, nil)
	for id := range 3 {
		s.clients = append(s.clients, &simClient{id: metadata.NodeID(id + 1), run: 1})
	}
	return s
}

func (s *sim) send(m simMessage) { s.net = append(s.net, m) }

func (s *sim) request(c *simClient, q metadata.Append) {
	c.q = q
	s.send(simMessage{kind: "request", node: c.id, run: c.run, q: q, asked: c.app.Reports()})
}

// step performs one random event.
func (s *sim) step(calm bool) {
	dice := s.rng.IntN(100)
	switch {
	case dice < 60 && len(s.net) > 0:
		i := s.rng.IntN(len(s.net))
		m := s.net[i]
		switch n := s.rng.IntN(40); {
		case n == 0 && !calm && m.kind != "placing":
			s.note("duplicate %s of node %d", m.kind, m.node)
		case n == 1 && !calm && m.kind != "placing":
			s.note("lose %s of node %d seq %d", m.kind, m.node, m.q.Seq)
			s.net = slices.Delete(s.net, i, i+1)
			s.lost(m)
			return
		default:
			s.net = slices.Delete(s.net, i, i+1)
		}
		s.deliver(m)
	case dice < 92 || calm:
		s.act(s.clients[s.rng.IntN(len(s.clients))], calm)
	case dice < 95:
		s.crashClient(s.clients[s.rng.IntN(len(s.clients))])
	case dice < 97:
		s.crashHome()
	case dice < 98:
		s.crashHome()
		s.crashClient(s.clients[s.rng.IntN(len(s.clients))])
	case s.rng.IntN(3) == 0: // a home that another node stands in for, and that does not know that yet, asks
		s.send(simMessage{kind: "ask", node: s.clients[s.rng.IntN(len(s.clients))].id, home: math.MaxUint64})
	case s.home != nil: // a node that was away returns to a home that has been running
		c := s.clients[s.rng.IntN(len(s.clients))]
		s.home.Await(c.id)
		s.send(simMessage{kind: "ask", node: c.id, home: s.homeRun})
	}
	if s.home == nil && s.rng.IntN(5) == 0 {
		s.startHome()
	}
	s.check()
}

// lost reports a lost message to its sender as an error.
func (s *sim) lost(m simMessage) {
	switch m.kind {
	case "ask", "report":
		if s.home != nil && m.home == s.homeRun {
			s.send(simMessage{kind: "ask", node: m.node, home: s.homeRun}) // homes try again
		}
	case "request", "reply":
		if c := s.clients[m.node-1]; c.run == m.run && m.q.Seq == c.q.Seq && m.q.Len == c.q.Len {
			s.failed(c)
		}
	}
}

func (s *sim) failed(c *simClient) {
	switch c.phase {
	case "reserve":
		c.app.Failed()
		c.phase = ""
	case "sync":
		c.phase, c.acks = "", nil // fsync has failed: no durability is promised
	}
}

func (s *sim) act(c *simClient, calm bool) {
	switch c.phase {
	case "":
		if s.rng.IntN(3) == 0 || calm {
			if c.app.Invisible() || len(c.acks) > 0 {
				c.phase = "sync"
				s.request(c, c.app.Settlement(historyFile, 0))
			}
			return
		}
		c.seq++
		c.phase = "reserve"
		s.request(c, c.app.Reserve(historyFile, c.seq, 1+s.rng.Int64N(4), 0))
		s.open(c)
	case "write":
		c.phase = ""
		if s.rng.IntN(20) == 0 && !calm {
			c.app.Written(0, true, s.size)
			return
		}
		s.write(c)
	}
}

// open records the open file at the home, like the client's Open.
func (s *sim) open(c *simClient) {
	if s.home != nil {
		_ = s.home.Open(metadata.Holder{Node: c.id, Run: c.run}, historyFile, 1) // an earlier run is refused
	}
}

func (s *sim) write(c *simClient) {
	n := c.q.Len
	id := len(s.appends)
	s.appends = append(s.appends, simAppend{node: c.id, ext: metadata.Extent{Off: c.off, Len: n}})
	for k := c.off; k < c.off+n; k++ {
		for int64(len(s.cells)) <= k {
			s.cells = append(s.cells, 0)
		}
		if was := s.cells[k]; was > 0 && s.appends[was-1].acked {
			s.fail("node %d writes [%d,%d), where an acknowledged append of node %d is", c.id, c.off, c.off+n, s.appends[was-1].node)
		}
		s.cells[k] = id + 1
	}
	s.note("node %d writes [%d,%d)", c.id, c.off, c.off+n)
	c.app.Written(int(n), false, s.size)
	c.acks = append(c.acks, id)
}

func (s *sim) deliver(m simMessage) {
	switch m.kind {
	case "request":
		s.arrive(m)
	case "placing":
		s.place(m)
	case "reply":
		s.reply(m)
	case "ask":
		c := s.clients[m.node-1]
		fl, placed := c.app.Report()
		s.note("node %d run %d reports to home %d: outstanding %+v, written %v", c.id, c.run, m.home, fl, placed)
		s.send(simMessage{kind: "report", node: c.id, run: c.run, home: m.home, files: []metadata.Opened{{
			Ino: historyFile, Ticket: 1, Outstanding: fl, Written: placed,
		}}})
	case "report":
		if s.home != nil && m.home == s.homeRun {
			s.home.Add(metadata.Holder{Node: m.node, Run: m.run}, m.files)
			s.home.Answered(m.node)
		}
	}
}

// arrive performs the first half of an Append at the home, up to the read of the store.
func (s *sim) arrive(m simMessage) {
	if s.home == nil {
		s.lost(m)
		return
	}
	was, err := s.home.Before(metadata.Holder{Node: m.node, Run: m.run}, m.q, time.Time{})
	switch {
	case err != nil:
		m.kind, m.err = "reply", err
		s.send(m)
	case was.wait != nil:
		s.send(m)
	default:
		m.kind, m.was, m.size, m.home = "placing", was, s.size, s.homeRun
		s.send(m)
	}
}

// place performs the second half of an Append.
func (s *sim) place(m simMessage) {
	if s.home == nil || m.home != s.homeRun {
		m.kind = "request"
		s.lost(m)
		return
	}
	p, _, err := s.home.Place(metadata.Holder{Node: m.node, Run: m.run}, m.q, m.was, m.size, time.Time{})
	if err == errAgain {
		m.kind = "request"
		s.send(m)
		return
	}
	if end, ok := s.home.BeginPublish(historyFile, m.was); ok {
		s.size = max(s.size, end)
		s.home.EndPublish(historyFile)
	}
	p.Attr.Size = s.size
	s.note("home %d: node %d seq %d len %d: %+v, %v; size %d", s.homeRun, m.node, m.q.Seq, m.q.Len, p.Off, err, s.size)
	m.kind, m.place, m.err = "reply", p, err
	s.send(m)
}

func (s *sim) reply(m simMessage) {
	c := s.clients[m.node-1]
	if c.run != m.run || c.q.Seq != m.q.Seq || c.q.Len != m.q.Len {
		return // the call has ended
	}
	switch {
	case c.phase != "reserve" && c.phase != "sync":
	case m.err != nil:
		if errors.Is(m.err, syscall.ESTALE) && c.phase == "reserve" {
			s.fail("append %d of node %d, run %d: %v", m.q.Seq, c.id, c.run, m.err)
		}
		s.failed(c)
	case c.phase == "reserve":
		if c.app.Placed(m.place, m.asked) {
			s.request(c, c.q)
			return
		}
		c.phase, c.off = "write", m.place.Off
	default:
		c.app.Settled(m.q, m.place, m.asked)
		if !appends.Covered(m.q, m.place) {
			s.request(c, c.app.Settlement(historyFile, 0))
			return
		}
		c.phase = ""
		for _, id := range c.acks {
			s.appends[id].acked = true
			s.note("node %d: [%d,%d) is acknowledged", c.id, s.appends[id].ext.Off, s.appends[id].ext.End())
		}
		c.acks = nil
	}
}

func (s *sim) crashClient(c *simClient) {
	s.note("node %d dies", c.id)
	*c = simClient{id: c.id, run: c.run + 1}
	s.net = slices.DeleteFunc(s.net, func(m simMessage) bool { return m.node == c.id && m.kind == "ask" })
	if s.home == nil {
		return
	}
	// The home learns of the new run, and asks it if it still waits for the node.
	if s.rng.IntN(2) == 0 {
		s.home.NoteRun(metadata.Holder{Node: c.id, Run: c.run})
	}
	s.send(simMessage{kind: "ask", node: c.id, home: s.homeRun})
}

func (s *sim) crashHome() {
	s.note("home %d dies", s.homeRun)
	s.home = nil
	s.homeRun++
}

func (s *sim) startHome() {
	s.note("home %d starts", s.homeRun)
	s.home = NewRegistry(func() {}, nil)
	for _, c := range s.clients {
		s.home.Recover(c.id)
		s.send(simMessage{kind: "ask", node: c.id, home: s.homeRun})
	}
}

// check checks the invariant of package appends.
func (s *sim) check() {
	for id, a := range s.appends {
		if !a.acked {
			continue
		}
		if a.ext.End() > s.size {
			s.fail("[%d,%d) of node %d is acknowledged, the size is %d", a.ext.Off, a.ext.End(), a.node, s.size)
		}
		for k := a.ext.Off; k < a.ext.End(); k++ {
			if s.cells[k] != id+1 {
				s.fail("byte %d of [%d,%d), acknowledged on node %d, belongs to append %d", k, a.ext.Off, a.ext.End(), a.node, s.cells[k])
			}
		}
	}
}

// TestRandomHistories runs the append protocol under random orders of messages, duplicates, losses, and restarts of the
// home and its clients, also both at once, and checks the invariant after every step.
func TestRandomHistories(t *testing.T) {
	first, n := rand.Uint64(), *histories
	if *historySeed != 0 {
		first, n = *historySeed, 1
	}
	acked := 0
	for k := range n {
		s := newSim(t, first+uint64(k))
		for range 250 {
			s.step(false)
		}
		if s.home == nil {
			s.startHome()
		}
		for _, c := range s.clients { // a restarted daemon announces itself to all
			s.home.NoteRun(metadata.Holder{Node: c.id, Run: c.run})
		}
		for range 2000 { // run until all clients are idle
			s.step(true)
			if len(s.net) == 0 && !slices.ContainsFunc(s.clients, func(c *simClient) bool { return c.phase != "" || c.app.Invisible() }) {
				break
			}
		}
		for _, c := range s.clients {
			if c.phase != "" || c.app.Invisible() {
				s.fail("node %d does not come to rest: phase %q, %+v", c.id, c.phase, c.app)
			}
		}
		for _, a := range s.appends {
			if a.acked {
				acked++
			}
		}
	}
	if acked < n {
		t.Errorf("%d appends acknowledged in %d histories: too few for the test to mean anything", acked, n)
	}
}
