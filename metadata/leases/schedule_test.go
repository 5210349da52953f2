package leases

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// plant is a fault built into a schedule, to check that the schedules detect it.
type plant string

const (
	noFault       plant = ""
	lateTerm      plant = "a holder counts its term from the reply"
	earlyAck      plant = "changes are acknowledged while a recall is in flight"
	recalledAtAsk plant = "a second change does not wait for the recall of the first"
	noStrict      plant = "a restarted home forgets that there may be leases"
	noExpiry      plant = "a holder that does not answer is not waited for"
	lateFetch     plant = "a holder starts its fetch when the reply comes"
	noOwnDrop     plant = "a client keeps what it has changed itself"
	renewAlways   plant = "a session is renewed although a recall is not answered"
	renewEnded    plant = "a session that has ended is renewed"
	sameSession   plant = "a restarted home takes sessions of its earlier run for its own"
	lateAsk       plant = "a home asks its table after it has read"
	noSession     plant = "a holder keeps what it has when its session ends"
	noDoubt       plant = "a client caches what a call without an answer may still change"
	keepLost      plant = "a client keeps a lease over its own change that was recalled meanwhile"
	keepNew       plant = "a client keeps a lease over its own change that it was granted meanwhile"
	keepFetch     plant = "a client caches an older answer after its own change"
	slowOwn       plant = "a change recalls nothing from its own node, however long it takes"
)

// slack is the extra time that the home waits beyond its holder.
const slack = Term / 10

// schedule is one home and its clients under a random order of events. Values are counters; the invariant is that no
// client uses an answer older than the last acknowledged change.
type schedule struct {
	rnd      *rand.Rand
	clock    clock
	plant    plant
	table    *Table
	run      int // of the home
	values   map[metadata.LeaseKey]uint64
	acked    map[metadata.LeaseKey]uint64
	clients  []*client
	events   []event // that may happen next, in any order
	used     int     // cached answers that were used
	listings int     // listings among them
	kept     int     // leases that survived a change by their holder
	fault    error
}

type client struct {
	id    metadata.NodeID
	run   int
	cache *Cache
}

// event happens at any time after at.
type event struct {
	at time.Time
	do func()
}

func newSchedule(seed uint64, p plant) *schedule {
	s := &schedule{
		rnd: rand.New(rand.NewPCG(seed, 1)), clock: *newClock(), plant: p,
		values: make(map[metadata.LeaseKey]uint64), acked: make(map[metadata.LeaseKey]uint64),
	}
	s.table = NewTable(s.clock.now, time.Time{})
	for i := range 3 {
		s.clients = append(s.clients, &client{id: metadata.NodeID(i + 1), cache: NewCache(s.clock.now)})
	}
	return s
}

func (s *schedule) later(do func()) { s.after(0, do) }

func (s *schedule) after(d time.Duration, do func()) {
	s.events = append(s.events, event{s.clock.t.Add(d), do})
}

// atHome is like later, for a step of the home that is dropped if the home restarts first.
func (s *schedule) atHome(do func()) { s.afterAtHome(0, do) }

func (s *schedule) afterAtHome(d time.Duration, do func()) {
	run := s.run
	s.after(d, func() {
		if run == s.run {
			do()
		}
	})
}

func (s *schedule) lost() bool { return s.rnd.IntN(8) == 0 }

func (s *schedule) key() metadata.LeaseKey {
	k := metadata.LeaseKey{Ino: metadata.Ino(20 + s.rnd.IntN(2))}
	if s.rnd.IntN(2) == 0 {
		k.Name = "f"
	}
	return k
}

// step performs one random step.
func (s *schedule) step() {
	s.clock.pass(1)
	c, k := s.clients[s.rnd.IntN(len(s.clients))], s.key()
	switch n := s.rnd.IntN(100); {
	case n < 50:
		s.happen()
	case n < 65:
		s.read(c, k)
	case n < 75:
		s.ask(c, k)
	case n < 81:
		s.change(c, k)
	case n < 83:
		s.renew(c)
	case n < 84:
		s.clock.pass(Term + 1)
		if s.rnd.IntN(4) == 0 {
			s.clock.pass(KeyTerm)
		}
	case n < 98:
		s.clock.pass(time.Duration(s.rnd.IntN(int(Term / 4))))
	case n < 99: // the client restarts
		c.run++
		c.cache = NewCache(s.clock.now)
	default: // the home restarts
		s.run++
		strict := s.clock.t.Add(Term + slack)
		if s.plant == noStrict {
			strict = time.Time{}
		}
		s.table = NewTable(s.clock.now, strict)
	}
}

// happen performs one of the events that are due.
func (s *schedule) happen() {
	var due []int
	for i, e := range s.events {
		if !e.at.After(s.clock.t) {
			due = append(due, i)
		}
	}
	if len(due) == 0 {
		return
	}
	i := due[s.rnd.IntN(len(due))]
	e := s.events[i]
	s.events = append(s.events[:i], s.events[i+1:]...)
	e.do()
}

// read uses the cached answer of c.
func (s *schedule) read(c *client, k metadata.LeaseKey) {
	var have uint64
	if es, ok := c.cache.Listing(k.Ino, ""); ok && k.Name == "" && s.rnd.IntN(2) == 0 {
		s.listings++
		have = uint64(es[0].Ino) - 1000
	} else if k.Name == "" {
		a, left := c.cache.Attr(k.Ino)
		if left <= 0 {
			return
		}
		have = uint64(a.Ctime)
	} else {
		e, ok := c.cache.Entry(k.Ino, k.Name)
		if !ok {
			return
		}
		have = uint64(e.Ino) - 1000
	}
	s.used++
	if have < s.acked[k] && s.fault == nil {
		s.fault = fmt.Errorf("client %d uses version %d of %v after the change to %d was acknowledged", c.id, have, k, s.acked[k])
	}
}

// ask lets c ask the home.
func (s *schedule) ask(c *client, k metadata.LeaseKey) {
	run, cache, fetch, list := c.run, c.cache, c.cache.Fetch(), k.Name == "" && s.rnd.IntN(2) == 0
	lost, replyLost := s.lost(), s.lost()
	fail := func() { s.later(fetch.End) }
	if lost {
		fail()
		return
	}
	s.atHome(func() {
		q := s.table.Ask(c.id)
		value := s.values[k]
		s.atHome(func() {
			if s.plant == lateAsk {
				q = s.table.Ask(c.id)
			}
			term := s.table.Grant(k, q)
			l := metadata.Lease{Session: metadata.LeaseSession{ID: q.Session}, Term: q.Term}
			if replyLost {
				fail()
				return
			}
			s.later(func() {
				if c.run != run {
					return
				}
				switch s.plant {
				case lateFetch:
					fetch.seq = cache.seq
				case lateTerm:
					fetch.began = s.clock.t
				}
				if s.plant == noSession {
					l.Term = KeyTerm
				}
				fetch := fetch.Under(l)
				if k.Name == "" {
					fetch.Attr(metadata.Attr{Ino: k.Ino, Mode: 0o100644, Ctime: metadata.Time(value)}, term)
				} else {
					fetch.Entry(k.Ino, metadata.Entry{Name: k.Name, Ino: metadata.Ino(1000 + value)}, term)
				}
				if list {
					fetch.Listing(k.Ino, "", []metadata.Entry{{Name: "f", Ino: metadata.Ino(1000 + value)}}, true, term)
				}
				fetch.End()
			})
		})
	})
}

// renew renews the sessions that are due.
func (s *schedule) renew(c *client) {
	for _, id := range c.cache.Due() {
		run, cache, asked := c.run, c.cache, s.clock.t
		reply := func(term time.Duration) {
			s.later(func() {
				if c.run == run {
					cache.Renewed(id, asked, term)
				}
			})
		}
		if s.lost() {
			reply(-1)
			continue
		}
		s.atHome(func() {
			n := s.table.nodes[c.id]
			switch {
			case n == nil:
			case s.plant == renewAlways && n.until.After(s.clock.t):
				n.until = s.clock.t.Add(Term)
			case s.plant == renewEnded && n.id == id.ID:
				n.until = s.clock.t.Add(Term)
			}
			term := s.table.Renew(c.id, id.ID)
			if s.plant == sameSession && n == nil {
				term = Term
			}
			if s.lost() {
				term = -1
			}
			reply(term)
		})
	}
}

// change lets c change k at the home.
func (s *schedule) change(c *client, k metadata.LeaseKey) {
	run, own := c.run, c.cache.Change(k.Ino)
	if s.lost() {
		s.later(own.End)
		return
	}
	var gaveUp time.Time // when the client gave the call up; zero if it has not
	answered := false
	if s.rnd.IntN(4) == 0 {
		s.later(func() {
			if answered {
				return
			}
			if gaveUp = s.clock.t; s.plant == noDoubt {
				c.cache.Revoke(k)
			} else {
				c.cache.Doubt(k)
			}
			own.End()
		})
	}
	s.atHome(func() {
		began := s.clock.t
		if !gaveUp.IsZero() && began.Sub(gaveUp) >= KeyTerm {
			return // no request arrives this late
		}
		write := func() {
			s.values[k]++
			version := s.values[k]
			s.atHome(func() {
				if s.plant == slowOwn {
					began = s.clock.t
				}
				tell, after := s.table.Change(c.id, began, k)
				open := len(tell)
				var done func()
				done = func() {
					if d := after.Sub(s.clock.t); !after.IsZero() && d > 0 {
						s.after(d, done)
						return
					}
					if s.lost() {
						return
					}
					answer := version
					if s.rnd.IntN(2) == 0 {
						answer = s.values[k] // like that of an append, which is read later
					}
					s.later(func() {
						if c.run != run {
							return
						}
						if s.plant != noOwnDrop && gaveUp.IsZero() {
							s.changed(c.cache, own, k, answer)
							own.End()
							answered = true
						}
						s.acked[k] = max(s.acked[k], version)
					})
				}
				for h, keys := range tell {
					if s.plant == recalledAtAsk {
						s.table.Recalled(h, keys)
					}
					s.recall(h, keys, func() {
						if open--; open == 0 {
							done()
						}
					})
				}
				if len(tell) == 0 || s.plant == earlyAck {
					open = -1
					done()
				}
			})
		}
		if s.rnd.IntN(8) == 0 {
			s.afterAtHome(KeyTerm+2*Term, write) // it is slow
			return
		}
		write()
	})
}

// changed passes the reply to a change of k to a cache.
func (s *schedule) changed(c *Cache, own OwnChange, k metadata.LeaseKey, answer uint64) {
	if k.Name != "" {
		c.Revoke(k)
		return
	}
	switch s.plant {
	case keepLost:
		own.seq = c.seq
	case keepNew:
		own.had = c.attrs[k.Ino].kept
	}
	if own.Changed(metadata.Attr{Ino: k.Ino, Mode: 0o100644, Ctime: metadata.Time(answer)}) {
		s.kept++
	}
	if s.plant == keepFetch {
		delete(c.past, k)
	}
}

// recall recalls the leases of h, or waits until they expire.
func (s *schedule) recall(h Holder, keys []metadata.LeaseKey, done func()) {
	c, run := s.clients[h.Node-1], s.run
	finished := false
	finish := func() {
		if run != s.run || finished {
			return
		}
		finished = true
		s.table.Recalled(h, keys)
		done()
	}
	wait := h.Until.Sub(s.clock.t) + slack
	if s.plant == noExpiry {
		wait = 0
	}
	s.after(wait, finish)
	if s.lost() {
		return
	}
	replyLost := s.lost()
	s.later(func() {
		c.cache.Recalled(keys...)
		if !replyLost {
			s.later(finish)
		}
	})
}

func runSchedule(seed uint64, p plant) *schedule {
	s := newSchedule(seed, p)
	for range 300 {
		s.step()
		if s.fault != nil {
			break
		}
	}
	return s
}

// TestSchedules: for any order of events, lost messages and restarts, no client uses an answer older than an
// acknowledged change.
func TestSchedules(t *testing.T) {
	used, listings, kept := 0, 0, 0
	const seeds = 3000
	for seed := range uint64(seeds) {
		s := runSchedule(seed, noFault)
		if s.fault != nil {
			t.Fatalf("seed %d: %v", seed, s.fault)
		}
		used, listings, kept = used+s.used, listings+s.listings, kept+s.kept
	}
	if used < seeds || listings < seeds/30 || kept < seeds/30 {
		t.Errorf("%d cached answers and %d listings were used, %d leases kept in %d schedules: too few to show anything", used, listings, kept, seeds)
	}
}

// TestSchedulesFindFaults: each fault of the protocol is detected. For faults that need a rare order of events, the
// seeds begin shortly before one that has it.
func TestSchedulesFindFaults(t *testing.T) {
	begin := map[plant]uint64{renewAlways: 2440, renewEnded: 2440, sameSession: 7500, lateAsk: 7000, noDoubt: 5200, slowOwn: 10_100, keepLost: 57_400, keepNew: 13_900}
	for _, p := range []plant{lateTerm, earlyAck, recalledAtAsk, noStrict, noExpiry, lateFetch, noOwnDrop, renewAlways, renewEnded, sameSession, noSession, lateAsk, noDoubt, slowOwn, keepLost, keepNew, keepFetch} {
		found := false
		for seed := begin[p]; seed < begin[p]+20_000 && !found; seed++ {
			found = runSchedule(seed, p).fault != nil
		}
		if !found {
			t.Errorf("not found: %s", p)
		}
	}
}
