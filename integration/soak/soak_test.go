package soak

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bivouacfs/bivouac/daemon"
	"github.com/bivouacfs/bivouac/daemon/home"
)

var (
	long     = flag.Duration("time", 20*time.Second, "how long TestSoak injects faults")
	away     = flag.Int("away", 0, "one death of so many lasts until the node is given up; 0 is none")
	seedFlag = flag.Uint64("seed", 0, "of TestSoak; 0 is any")
	losses   = flag.Bool("losses", false, "lose two nodes for good in the end")
)

const (
	workers = 4
	round   = 8 // faults between two full verifications
	// bound limits one step of a load under any fault: the others declare a node lost after 15 s, and a call is
	// repeated a few times. It is no measure of speed.
	bound = 90 * time.Second
)

// loads holds the loads that work on the job while faults are injected.
type loads struct {
	workers     []*worker
	appenders   []*appender
	checkpoints []*checkpointer
	readers     []*reader
}

func newLoads(t *testing.T, j *testJob, seed uint64) *loads {
	t.Helper()
	l := new(loads)
	for i := range workers {
		l.workers = append(l.workers, newWorker(t, j, seed, i))
	}
	source := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	if err := os.WriteFile(j.scratch(source(99).IntN(len(j.nodes)), "log"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for i := range j.nodes {
		l.appenders = append(l.appenders, newAppender(j, i, source(uint64(100+i))))
		l.checkpoints = append(l.checkpoints, newCheckpointer(t, j, i, source(uint64(200+i))))
		l.readers = append(l.readers, &reader{j: j, node: i, rng: source(uint64(300 + i))})
	}
	return l
}

// steps returns one function for each load, which does one operation.
func (l *loads) steps() map[string]func() {
	all := make(map[string]func())
	for i := range l.workers {
		all[l.workers[i].root] = l.workers[i].step
	}
	for i := range l.appenders {
		all[fmt.Sprint("append on node ", l.appenders[i].node)] = l.appenders[i].step
	}
	for i := range l.checkpoints {
		all[fmt.Sprint("checkpoint on node ", l.checkpoints[i].node)] = l.checkpoints[i].step
	}
	for i := range l.readers {
		all[fmt.Sprint("dataset read on node ", l.readers[i].node)] = l.readers[i].step
	}
	return all
}

// TestSoak: dataset reads, appends with fsync, checkpoints by write and rename, and changes of names continue while
// daemons are killed or stopped, drives are full, fail or return wrong bytes, links are cut in one or both
// directions, and clocks are changed. All acknowledged bytes and names exist, no byte is wrong, nothing existing is
// ENOENT, no operation hangs, and at the end no inode or object is left; with -losses two nodes are lost then.
func TestSoak(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	j := startJob(t, 4, seed%2 == 1)
	l := newLoads(t, j, seed)
	rng := rand.New(rand.NewPCG(seed, 1<<32))
	for end := time.Now().Add(*long); time.Now().Before(end) && !t.Failed(); {
		j.storm(l, rng)
		l.verify(j, rng)
	}
	t.Logf("faults: %s; %s", j.counts(), l)
	defer func() { t.Log(&j.verdict) }()
	if t.Failed() {
		return
	}
	l.remove(j, rng)
	j.whole(0, func(r home.CheckResult) error { return expected(r, nil, tally{}) })
	if *losses {
		j.lose(t, seed)
		return
	}
	if err := j.ctl(0).Remove(context.Background(), daemon.RemoveRequest{Name: setName}); err != nil {
		t.Fatal(err)
	}
	j.eventually("nothing is left in the stores", j.clean)
}

// String reports the acknowledged operations.
func (l *loads) String() string {
	var ops, lines, saved, reads int
	for _, w := range l.workers {
		ops += w.done
	}
	for i := range l.appenders {
		lines += len(l.appenders[i].acked)
		saved += int(l.checkpoints[i].saved)
		reads += l.readers[i].done
	}
	return fmt.Sprintf("acknowledged: %d changes and reads of files, %d appended lines, %d checkpoints, %d dataset reads", ops, lines, saved, reads)
}

// storm runs all loads while faults are injected, and for a moment after the last, when everything must work.
func (j *testJob) storm(l *loads, rng *rand.Rand) {
	j.t.Helper()
	j.underLoad(l, func() {
		for range round {
			time.Sleep(time.Duration(rng.IntN(1000)) * time.Millisecond) // random timing of the fault
			j.fault(rng)
		}
		j.settle()
		j.eventually("all nodes have been up for a while", func() error {
			if _, calm := j.moment(); !calm {
				return errNotCalm
			}
			return nil
		})
		time.Sleep(time.Second) // of work without a fault
	})
}

// underLoad runs all loads during f.
func (j *testJob) underLoad(l *loads, f func()) {
	var over atomic.Bool
	var wg sync.WaitGroup
	defer func() { // also if f ends the test
		over.Store(true)
		wg.Wait()
	}()
	for what, step := range l.steps() {
		wg.Go(func() {
			for !over.Load() && !j.lostNode(what) {
				late := time.AfterFunc(bound, func() { j.found(&j.verdict.hung, "%s: not over after %v", what, bound) })
				step()
				late.Stop()
			}
		})
	}
	f()
}

// verify compares everything with the loads' records.
func (l *loads) verify(j *testJob, rng *rand.Rand) {
	j.t.Helper()
	at := rng.IntN(len(j.nodes))
	j.whole(at, func(home.CheckResult) error { return nil })
	for _, w := range l.workers {
		w.verify(rng.IntN(len(j.nodes)))
	}
	for i := range l.appenders {
		checkLog(j.t, j, l.appenders[(at+i)%len(l.appenders)], l.appenders)
		l.checkpoints[i].verify()
		l.readers[i].verify()
	}
	j.whole(at, func(r home.CheckResult) error {
		extra, err := j.tally(at)
		if err != nil {
			return err
		}
		return expected(r, l.workers, extra)
	})
}

// remove removes all files of the loads.
func (l *loads) remove(j *testJob, rng *rand.Rand) {
	j.t.Helper()
	paths := []string{"log"}
	for _, w := range l.workers {
		paths = append(paths, w.root)
	}
	for i := range l.appenders {
		l.appenders[i].close()
		paths = append(paths, l.checkpoints[i].dir)
	}
	for _, p := range paths {
		if err := os.RemoveAll(j.scratch(rng.IntN(len(j.nodes)), p)); err != nil {
			j.t.Fatal(err)
		}
	}
}

// tally is a number of directories, names and files.
type tally struct{ dirs, names, files int64 }

// tally counts everything that belongs to no worker.
func (j *testJob) tally(i int) (n tally, err error) {
	tops, err := filepath.Glob(j.scratch(i, "[cl]*"))
	for _, top := range tops {
		err = filepath.WalkDir(top, func(_ string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			n.names++
			if e.IsDir() {
				n.dirs++
			} else {
				n.files++
			}
			return nil
		})
		if err != nil {
			return n, err
		}
	}
	return n, err
}
