package daemon

import (
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestNodeLines: a lost or returned node is reported to the user once; other changes are not reported.
func TestNodeLines(t *testing.T) {
	up := cluster.NewMap(1, []string{"a", "b", "c"})
	for i := range up.Nodes {
		up = up.WithState(up.Nodes[i].ID, cluster.Up, "x:1")
	}
	view := func(m cluster.Map) cluster.View { return cluster.View{Version: 1, Map: m} }
	down, back := up.WithState(1, cluster.Down, ""), up.WithState(1, cluster.Down, "").WithState(1, cluster.Up, "x:1")
	closing := view(down)
	closing.Closing = true
	paired, _ := up.WithPartner(1, 0, cluster.Partner{Node: 2, Since: up.Epoch})
	taken := paired.WithState(1, cluster.Down, "")
	empty, _ := paired.WithPartner(1, 0, cluster.Partner{Node: 2, Since: up.Epoch, StandsIn: true})
	both := empty.WithState(2, cluster.Down, "")
	copied, _ := empty.WithPartner(1, up.Epoch, cluster.Partner{Node: 0, Since: empty.Epoch})
	handed, _ := copied.WithPartner(1, up.Epoch, cluster.Partner{Node: 0, Since: empty.Epoch, StandsIn: true})
	for _, c := range []struct {
		name     string
		was, now cluster.View
		want     string // the only line
	}{
		{"copied", view(up), view(paired), ""},
		{"taken over", view(paired), view(taken), "c has taken over the names of its files"},
		{"back without names", view(taken), view(taken.WithState(1, cluster.Up, "x:1")), "; c keeps the names"},
		{"an empty disk", view(paired), view(empty), "b has started with an empty disk: c has taken over"},
		{"a third node", view(copied), view(handed), "a has taken over the names of files of b from c"},
		{"the same disk", view(empty), view(empty), ""},
		{"lost with its partner", view(taken), view(taken.WithState(0, cluster.Down, "")), "no answer from a"},
		{"nothing", view(up), view(up), ""},
		{"lost", view(up), view(down), "no answer from b: "},
		{"the root", view(up), view(up.WithState(0, cluster.Down, "")), "root of scratch"},
		{"known", view(down), view(down), ""},
		{"back", view(down), view(back), "b is back"},
		{"the end", view(up), closing, ""},
		{"the start", cluster.View{Map: cluster.NewMap(1, []string{"a", "b", "c"})}, view(up), ""},
		{"leaves", view(up), view(up.WithState(1, cluster.Leaving, "x:1")), ""},
		{"absent from the start", view(cluster.NewMap(1, []string{"a", "b"})), view(cluster.NewMap(1, []string{"a", "b"}).WithState(1, cluster.Down, "")), ""},
	} {
		got, lost := nodeLines(c.was, c.now)
		if wantLost := strings.Contains(c.want, "no answer") || c.name == "the root" || c.name == "taken over"; len(lost) > 1 || wantLost != (len(lost) == 1) {
			t.Errorf("%s: lost %q", c.name, lost)
		}
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if got, _ := nodeLines(view(empty), view(both)); len(got) != 2 || !strings.Contains(got[0], "files of b are unavailable until c, which had taken over their names, returns") {
		t.Errorf("when the partner is lost, too: %q, want two lines", got)
	}
}

// TestNodeLinesOfMany: a view without node changes costs little, however expensive Names is.
func TestNodeLinesOfMany(t *testing.T) {
	m := cluster.NewMap(1, make([]string, 100))
	var up []cluster.Change
	for i := range m.Nodes {
		up = append(up, cluster.Change{ID: metadata.NodeID(i), State: cluster.Up, Switch: string(rune('a' + i%10))})
	}
	v := cluster.View{Version: 1, Map: m.With(up)}
	if n := testing.AllocsPerRun(10, func() { nodeLines(v, v) }); n > 10 {
		t.Errorf("%v allocations for nothing", n)
	}
}

// TestLostIsTold: only the node that notifies the user reports a lost node to the keeper.
func TestLostIsTold(t *testing.T) {
	log := logrus.New()
	log.SetOutput(io.Discard)
	var lost []string
	d := &Daemon{cfg: Config{Lost: func(host string) { lost = append(lost, host) }}, log: logrus.NewEntry(log), job: &job.File{Dirs: job.Dirs{Run: t.TempDir()}}}
	d.notifier = stageout.NewNotifier(d, d.job)
	up := cluster.NewMap(1, []string{"a", "b"}).WithState(0, cluster.Up, "x:1").WithState(1, cluster.Up, "x:1")
	was, now := cluster.View{Version: 1, Map: up}, cluster.View{Version: 1, Map: up.WithState(1, cluster.Down, "")}
	w := &warnings{d: d}
	w.nodes(was, now)
	if len(lost) > 0 {
		t.Errorf("a node that does not notify says that %q is lost", lost)
	}
	w.answered(true)
	w.nodes(was, now)
	if !slices.Equal(lost, []string{"b"}) {
		t.Errorf("lost %q, want b", lost)
	}
}
