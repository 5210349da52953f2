package cluster

import (
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
)

// TestSeats: the node with the second copy stands in for a lost one, repeatedly; proposals of an earlier stand-in no
// longer count.
func TestSeats(t *testing.T) {
	m := upMap(5, 1)
	offer := func(what string, seat metadata.Epoch, p Partner, ok bool) {
		t.Helper()
		next, did := m.WithPartner(1, seat, p)
		if m = next; did != ok {
			t.Errorf("%s: recorded %v, want %v", what, did, ok)
		}
	}
	names := func(what string, want Names) {
		t.Helper()
		if got := m.Names(1); got != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		var back Map
		for _, old := range []View{{}, {Version: 1, Map: upMap(5, 1)}} {
			old.Map.Nodes = append(old.Map.Nodes, make([]Node, 5-len(old.Map.Nodes))...)
			d := View{Version: 2, Map: m}.Since(old, nil)
			v, ok := d.Apply(old, nil)
			if back = v.Map; !ok || back.Nodes[1].Partner != m.Nodes[1].Partner || back.Nodes[1].Heir != m.Nodes[1].Heir {
				t.Errorf("%s: the difference has %+v, want %+v", what, back.Nodes[1], m.Nodes[1])
			}
		}
	}
	second := func() Partner { p, _ := m.NextPartner(1); return p }
	names("at first", Names{State: NamesCopying, Node: "n2"})
	first := second()
	offer("the first", 0, first, true)
	names("copied", Names{State: NamesCopied, Node: "n2"})
	late := Partner{Node: 3, Since: m.Epoch}

	m = m.WithState(1, Down, "")
	names("lost", Names{NamesServed, "n2", "", "n3"})
	offer("what the home has said", 0, late, false)
	offer("the home's word for that of the seat", first.Since, Partner{Node: 3, Since: first.Since}, false)
	offer("the home as its own heir", first.Since, Partner{Node: 1, Since: m.Epoch}, false)
	offer("the seat as its own heir", first.Since, Partner{Node: 2, Since: m.Epoch}, false)
	if m = m.WithState(1, Up, ""); second().Node != 3 {
		t.Errorf("next is %v", second())
	}
	heir := second()
	offer("the heir", first.Since, heir, true)
	names("with an heir", Names{NamesServed, "n2", "n3", ""})
	if l := m.WithState(3, Down, ""); l.Names(1) != (Names{NamesServed, "n2", "", "n4"}) || l.WithState(2, Down, "").Names(1) != (Names{State: NamesLost, Node: "n2"}) {
		t.Errorf("without the heir: %+v", l.Names(1))
	}
	if l := m.With([]Change{{ID: 2, State: Down}, {ID: 3, State: Down}}); l.Names(1) != (Names{State: NamesLost, Node: "n2"}) {
		t.Errorf("both are lost at once: %+v", l.Names(1))
	}
	last := m
	heir.StandsIn = true
	offer("another one than the heir", first.Since, Partner{Node: 4, Since: heir.Since, StandsIn: true}, false)
	offer("the seat's records are gone", first.Since, heir, true)
	names("handed over", Names{NamesServed, "n3", "", "n4"})
	m = last.WithState(2, Down, "")
	names("the seat is lost", Names{NamesServed, "n3", "", "n4"})
	m = m.WithState(2, Up, "")
	offer("what the old seat says", first.Since, Partner{Node: 4, Since: m.Epoch}, false)
	names("the old seat is back", Names{NamesServed, "n3", "", "n4"})
	m = m.With([]Change{{ID: 4, State: Down}, {ID: 0, State: Down}})
	offer("the old seat as the heir", heir.Since, second(), true)
	names("the old seat is the heir", Names{NamesServed, "n3", "n2", ""})
	if m = m.WithState(3, Down, ""); m.Nodes[1].Seat().Node != 2 || m.Nodes[1].Seat().Since <= heir.Since {
		t.Errorf("its second seat is %v, after %v", m.Nodes[1].Seat(), heir)
	}
	names("the old seat again", Names{NamesServed, "n2", "", ""})
}
