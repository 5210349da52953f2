package local

import (
	"strings"
	"syscall"
	"testing"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// TestFirstIsKilled: when the first node's daemon is dead, every command asks the next node that answers.
func TestFirstIsKilled(t *testing.T) {
	t.Parallel()
	c := pitch(t, "4")
	write(t, c.path("set.tar"), archive(t))
	write(t, c.path("late.tar"), archive(t))
	c.stageIn(c.path("set.tar"))
	first := c.state().Nodes[0]
	if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the others know that it is down", func() bool {
		return c.status("1").Nodes[0].State == cluster.Down
	})
	if out := c.ok("status", "--dir", c.dir); !strings.Contains(out, "mounted at "+c.node("1")) {
		t.Errorf("status is not that of the next node:\n%s", out)
	}
	for _, args := range [][]string{
		{"report"}, {"wait"}, {"skipped", "set"}, {"verify", "set"}, {"stage-in", c.path("late.tar")}, {"wait", "late"},
	} {
		c.ok(append(args, "--dir", c.dir)...)
	}
	// The result of these depends on the dead node's data.
	for _, args := range [][]string{{"check"}, {"stage-out", "none:" + c.path("out")}} {
		if r := c.run(append(args, "--dir", c.dir)...); strings.Contains(r.err, "no daemon answers") {
			t.Errorf("bivouac %q asks the dead node:\n%s", args, r.err)
		}
	}
	c.fails([]string{"the daemon of node0 has ended (see " + first.Log, "bivouac down --dir " + c.dir}, "status", "--dir", c.dir, "--node", "0")

	leads := int(c.status("1").Leader)
	for _, i := range []int{1, leads} {
		hung := c.state().Nodes[i].PID
		if err := syscall.Kill(hung, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(hung, syscall.SIGCONT) }) // it must end with the job
	}
	next := "2"
	if leads == 2 {
		next = "3"
	}
	if out := c.ok("status", "--dir", c.dir); !strings.Contains(out, "mounted at "+c.node(next)) {
		t.Errorf("status is not that of the node after those that hang, one of which leads:\n%s", out)
	}
}
