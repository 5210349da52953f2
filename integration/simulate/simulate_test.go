package simulate

import (
	"context"
	"flag"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
	"github.com/bivouacfs/bivouac/daemon/leader"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

var (
	large = flag.Int("nodes", 256, "nodes of the largest job")
	seed  = flag.Uint64("seed", 1, "of the times at which nodes start")
)

// spread is the time within which a job's nodes start, and mount the time each takes to serve its mount.
const (
	spread = time.Second
	mount  = 300 * time.Millisecond
)

// figures holds the results of a run.
type figures struct {
	nodes           int
	ready           time.Duration // from the start of the last node until all views are complete
	leader          Traffic       // until then
	lost, cut, back time.Duration // until all reachable views show a loss, a cut and its end
	quiet           Traffic       // of the leader in ten seconds without changes
}

func simulate(t *testing.T, n int) (f figures) {
	t.Helper()
	f.nodes = n
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(*seed, uint64(n)))
		c := New(Config{Nodes: n, Model: Default, Dir: t.TempDir(), Mount: mount, Start: func(int) time.Duration {
			return time.Duration(r.Int64N(int64(spread)))
		}})
		defer c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		until := func(what string, ok func(cluster.View) bool, but ...metadata.NodeID) time.Duration {
			took, err := c.Until(ctx, ok, but...)
			if err != nil {
				t.Fatalf("%d nodes: %s: %v", n, what, err)
			}
			return took
		}
		f.ready = until("start", func(v cluster.View) bool { return v.Version > 0 && !leader.Joining(v.Map) }) - spread
		lead := c.Leader(0)
		f.leader = c.Traffic(lead)

		time.Sleep(time.Second)
		was := c.Traffic(lead)
		time.Sleep(10 * time.Second)
		now := c.Traffic(lead)
		f.quiet = Traffic{now.Messages - was.Messages, now.Sent - was.Sent, now.Received - was.Received}

		var gone []metadata.NodeID
		for i := range max(1, n/100) {
			gone = append(gone, metadata.NodeID(n-1-7*i))
		}
		isDown := func(ids ...metadata.NodeID) func(cluster.View) bool {
			return func(v cluster.View) bool {
				for _, id := range ids {
					if s, _ := v.Map.Node(id); s.State != cluster.Down {
						return false
					}
				}
				return len(v.Map.Up()) == n-len(gone)-len(ids)+countIn(gone, ids)
			}
		}
		c.Lose(gone...)
		f.lost = until("loss", isDown(gone...), gone...)

		c.Cut(lead, true) // its successor declares it down
		f.cut = until("cut of the leader", isDown(append(gone, lead)...), append(gone, lead)...)
		c.Cut(lead, false)
		f.back = until("end of the cut", isDown(gone...), gone...)
	})
	return f
}

func countIn(all, some []metadata.NodeID) (n int) {
	for _, a := range all {
		for _, s := range some {
			if a == s {
				n++
			}
		}
	}
	return n
}

// TestSimulate: the bytes of a start grow in proportion to the nodes, and all nodes soon know a declared loss.
func TestSimulate(t *testing.T) {
	var last figures
	t.Log("nodes   ready  leader: messages      sent  received | quiet, 10 s: messages  sent  received |    lost     cut    back")
	for n := 64; n <= *large; n *= 2 {
		f := simulate(t, n)
		t.Logf("%5d %6.2fs %16d %8.2fM %8.2fM | %21d %4.2fM %8.2fM | %6.2fs %6.2fs %6.2fs", f.nodes, f.ready.Seconds(),
			f.leader.Messages, float64(f.leader.Sent)/1e6, float64(f.leader.Received)/1e6,
			f.quiet.Messages, float64(f.quiet.Sent)/1e6, float64(f.quiet.Received)/1e6, f.lost.Seconds(), f.cut.Seconds(), f.back.Seconds())
		if f.ready > 10*time.Second {
			t.Errorf("%d nodes: ready after %v", n, f.ready)
		}
		if limit := job.DefaultFailureTimeout + time.Second; f.lost > limit {
			t.Errorf("%d nodes: a loss is known everywhere after %v, want %v", n, f.lost, limit)
		}
		if last.nodes > 0 && f.leader.Sent > 5*last.leader.Sent {
			t.Errorf("%d nodes: the leader has sent %d bytes, with half of them %d", n, f.leader.Sent, last.leader.Sent)
		}
		last = f
	}
}
