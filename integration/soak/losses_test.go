package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// lossPairs lists nodes that are lost in sequence, including the partner of the first (0 for 3, 3 for 2). One of the
// two is not in the control group, which keeps its quorum.
var lossPairs = [][2]int{{3, 0}, {3, 1}, {3, 2}, {0, 3}, {1, 3}, {2, 3}}

// lose loses two nodes for good, in sequence, while loads whose files have two copies work on the others: the second
// is lost once each file, and the names of each node, have a second copy again. Afterwards all acknowledged data
// exists.
func (j *testJob) lose(t *testing.T, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2<<32))
	pair := lossPairs[rng.IntN(len(lossPairs))]
	t.Logf("losses: node %d, then node %d", pair[0], pair[1])
	l := newLoads(t, j, rng.Uint64()).withTwoCopies()
	for _, i := range pair {
		j.underLoad(l, func() {
			time.Sleep(time.Duration(1000+rng.IntN(2000)) * time.Millisecond)
			j.loseNode(i)
			time.Sleep(time.Second)
		})
		for _, at := range j.living() {
			for _, w := range l.workers {
				w.verify(at)
			}
			for _, c := range l.checkpoints {
				c.verify()
			}
		}
		for _, r := range l.readers {
			if !j.nodes[r.node].lost.Load() {
				r.verify()
			}
		}
	}
}

// withTwoCopies returns the loads of l that lose nothing with a node.
func (l *loads) withTwoCopies() *loads {
	two := &loads{readers: l.readers}
	for i := range l.workers {
		if i%2 == 1 {
			two.workers = append(two.workers, l.workers[i])
		}
	}
	for _, c := range l.checkpoints {
		if c.node%2 == 1 {
			two.checkpoints = append(two.checkpoints, c)
		}
	}
	return two
}

// loseNode kills a node's daemon and its keeper, and returns when the others have restored all copies.
func (j *testJob) loseNode(i int) {
	j.t.Helper()
	x := j.nodes[i]
	j.faults.Add(1)
	x.lost.Store(true)
	j.kill(i)
	_ = j.keepers[i].Close() // this ends it
	j.count("loss")
	j.eventually(fmt.Sprintf("the loss of node %d is made up for", i), func() error {
		for _, at := range j.living() {
			s, err := j.ctl(at).Status(context.Background())
			if err != nil {
				return err
			}
			if s.OneCopy != nil {
				return fmt.Errorf("node %d: files with one copy: %+v", at, *s.OneCopy)
			}
			for _, n := range s.Nodes {
				lost := j.nodes[n.ID].lost.Load()
				if lost != (n.State == cluster.Down) {
					return fmt.Errorf("node %d: %s is %v", at, n.Host, n.State)
				}
				// The last other node cannot have the copy if it is the home itself, which was replaced before.
				last := len(j.living()) == 2 && n.Names != nil && n.Names.State == cluster.NamesServed && n.Names.Copying == "" && !lost
				if n.Names == nil || !n.Names.Whole() && !last {
					return fmt.Errorf("node %d: names of %s: %+v", at, n.Host, n.Names)
				}
			}
		}
		return nil
	})
	j.turned.Store(time.Now().UnixNano())
	j.faults.Add(-1)
}

// living returns the nodes that are not lost for good.
func (j *testJob) living() (all []int) {
	for i, x := range j.nodes {
		if !x.lost.Load() {
			all = append(all, i)
		}
	}
	return all
}

// lostNode reports whether a load works on a lost node.
func (j *testJob) lostNode(what string) bool {
	for i, x := range j.nodes {
		if x.lost.Load() && strings.HasSuffix(what, fmt.Sprint("on node ", i)) {
			return true
		}
	}
	return false
}
