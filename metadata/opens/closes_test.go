package opens

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// opening is a client that opens and closes files, and its home. Messages arrive in any order, also late ones from
// before a restart of the home.
type opening struct {
	rng    *rand.Rand
	home   *Registry
	run    int // of the home
	asking bool
	ticket metadata.Ticket
	open   map[metadata.Ino]metadata.Ticket
	answer map[metadata.Ino]bool            // whether the home has answered the open
	closed map[metadata.Ino]metadata.Ticket // closes not sent yet
	net    []func()
	log    []string
}

func newOpening(seed uint64) *opening {
	return &opening{
		rng: rand.New(rand.NewPCG(seed, 2)), home: NewRegistry(func() {}, nil), open: map[metadata.Ino]metadata.Ticket{},
		answer: map[metadata.Ino]bool{}, closed: map[metadata.Ino]metadata.Ticket{},
	}
}

func (o *opening) note(format string, a ...any) { o.log = append(o.log, fmt.Sprintf(format, a...)) }

// ask lets the home ask for all open files, after a restart or because the node has returned.
func (o *opening) ask(await func(metadata.NodeID)) {
	await(1)
	run := o.run
	o.asking = true
	o.net = append(o.net, func() {
		var files []metadata.Opened
		for ino, t := range o.open {
			files = append(files, metadata.Opened{Ino: ino, Ticket: t})
		}
		o.note("asked by run %d: %v", run, files)
		o.net = append(o.net, func() {
			if run == o.run {
				o.note("answered")
				o.home.Add(on(1), files)
				o.home.Answered(1)
				o.asking = false
			}
		})
	})
}

func (o *opening) step() {
	ino := metadata.Ino(1000 + o.rng.IntN(2))
	_, open := o.open[ino]
	switch n := o.rng.IntN(20); {
	case n < 9 && len(o.net) > 0:
		i := o.rng.IntN(len(o.net))
		m := o.net[i]
		o.net = slices.Delete(o.net, i, i+1)
		m()
	case n < 12 && !open:
		t := o.closed[ino] // cancels a close that was not sent
		if delete(o.closed, ino); t == 0 {
			o.ticket++
			t = o.ticket
		}
		o.open[ino], o.answer[ino] = t, false
		o.net = append(o.net, func() {
			o.note("open %v, %d", ino, t)
			_ = o.home.Open(on(1), ino, t) // no other run, no removal
			o.answer[ino] = true
		})
	case n < 15 && open && o.answer[ino]:
		o.closed[ino] = o.open[ino]
		delete(o.open, ino)
	case n < 18 && o.closed[ino] > 0:
		t := o.closed[ino]
		delete(o.closed, ino)
		o.net = append(o.net, func() {
			o.note("close %v, %d", ino, t)
			o.home.Close(on(1), metadata.Opened{Ino: ino, Ticket: t})
		})
	case n == 18:
		o.run++
		o.note("restart %d", o.run)
		o.home = NewRegistry(func() {}, nil)
		o.ask(o.home.Recover)
	case n == 19 && !o.asking: // one request at a time
		o.ask(o.home.Await)
	}
}

// TestOpenHistories: once all messages have arrived, the home knows exactly which files are open.
func TestOpenHistories(t *testing.T) {
	first := rand.Uint64()
	for seed := first; seed < first+1000; seed++ {
		o := newOpening(seed)
		for range 60 {
			o.step()
		}
		for ino, t := range o.closed {
			o.net = append(o.net, func() { o.home.Close(on(1), metadata.Opened{Ino: ino, Ticket: t}) })
		}
		for len(o.net) > 0 {
			m := o.net[0]
			o.net = o.net[1:]
			m()
		}
		for ino := range metadata.Ino(1002) {
			if _, open := o.open[ino]; ino >= 1000 && o.home.Held(ino) != open {
				for _, l := range o.log {
					t.Log(l)
				}
				t.Fatalf("seed %d: the home has inode %v open: %t, the client: %t", seed, ino, !open, open)
			}
		}
	}
}
