package soak

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/metadata"
)

var errNotCalm = errors.New("there was a fault a moment ago")

// fault injects one fault, and returns when it has ended; a killed daemon is restarted by its keeper later.
func (j *testJob) fault(rng *rand.Rand) {
	i := rng.IntN(len(j.nodes))
	x := j.nodes[i]
	last := time.Duration(200+rng.IntN(2000)) * time.Millisecond
	switch n := rng.IntN(20); {
	case n < 5:
		for k := range 1 + rng.IntN(3)/2 {
			j.kill((i + k) % len(j.nodes))
		}
	case n < 7:
		fill := x.fill
		if rng.IntN(3) == 0 { // and its daemon must start there
			fill = func() error {
				err := x.fill()
				j.kill(i)
				return err
			}
		}
		j.lasting("full drive", i, last, fill, x.free)
	case n < 9:
		j.lasting("stop", i, last, func() error { return x.signal(syscall.SIGSTOP) }, func() error { return x.signal(syscall.SIGCONT) })
	case n < 11:
		j.lasting("cut", i, last, func() error { return j.net.do("cut", i) }, func() error { return j.net.do("mend", i) })
	case n < 12:
		to := (i + 1 + rng.IntN(len(j.nodes)-1)) % len(j.nodes)
		j.lasting("one-way cut", i, last, func() error { return j.net.do("cut-to", i, to) }, func() error { return j.net.do("mend-to", i, to) })
	case n < 15:
		j.badDrive(rng, i|1, last)
	case n < 18 && i%2 == 0:
		switch rng.IntN(3) {
		case 0:
			j.damage(rng, i)
		case 1:
			j.garbage(rng, i, last)
		case 2:
			for k := range j.nodes {
				j.kill(k)
			}
		}
	default:
		j.stepClock(rng, i)
	}
}

// kill kills the daemon of a node.
func (j *testJob) kill(i int) {
	if j.nodes[i].kill() {
		j.count("kill")
		j.seen.note("node %d: kill", i)
		j.turned.Store(time.Now().UnixNano())
	}
}

// badDrive makes some requests of a drive fail with EIO, in all files.
func (j *testJob) badDrive(rng *rand.Rand, i int, last time.Duration) {
	x, one := j.nodes[i], 1+rng.IntN(4)*rng.IntN(30)
	j.lasting("drive with EIO", i, last, func() error {
		x.sick.Store(1<<63 - 1)
		return x.disk.fails(one)
	}, func() error {
		defer x.recovered()
		return x.disk.fails(0)
	})
}

// damage changes files of the dataset on a drive, until all nodes verify it and refetch them. The kernel may read
// files directly that the daemon has verified once, so until then readers may get the damage.
func (j *testJob) damage(rng *rand.Rand, i int) {
	j.damaged.Add(1)
	defer j.damaged.Add(1)
	j.seen.note("node %d: damage", i)
	defer j.seen.note("node %d: damage is repaired", i)
	for range 1 + rng.IntN(8) {
		g, err := j.nodes[i].garble(rng, func(ino metadata.Ino, _ string) bool { return ino.Sealed() })
		if err != nil {
			j.found(&j.verdict.other, "damage on the drive of node %d: %v", i, err)
		}
		if g != nil {
			j.count("damaged dataset file")
		}
	}
	j.eventually("the dataset is repaired", func() error {
		if !j.nodes[i].ready.Load() {
			return fmt.Errorf("node %d is not ready: its files are not verified", i)
		}
		r, err := j.ctl((i+1)%len(j.nodes)).Verify(context.Background(), dataset.VerifySpec{Name: setName})
		if err == nil && r.Bad > 0 {
			err = fmt.Errorf("%d files are bad, %d of them repaired: %v", r.Bad, r.Repaired, r.BadFiles)
		}
		return err
	})
}

// garbage makes a drive return wrong bytes of a scratch file for a while. Data written before the daemon's last start
// is not checked, so only newer files are chosen.
func (j *testJob) garbage(rng *rand.Rand, i int, last time.Duration) {
	x := j.nodes[i]
	born := time.Unix(0, x.since.Load())
	var g *garbage
	j.lasting("garbage", i, last, func() (err error) {
		if !x.ready.Load() {
			return syscall.ESRCH
		}
		g, err = x.garble(rng, func(ino metadata.Ino, path string) bool { return !ino.Sealed() && bornSince(path, born) })
		if err == nil && g == nil {
			return syscall.ESRCH
		}
		return err
	}, func() error { return x.halted(g.repair) })
}

// stepClock sets the wall clock of a node seconds to years before or behind the others', and restarts its daemon in
// half of the cases. It does not excuse an error.
func (j *testJob) stepClock(rng *rand.Rand, i int) {
	if !hasClocks() {
		return
	}
	by := time.Second << rng.IntN(27)
	if rng.IntN(2) == 0 {
		by = -by
	}
	switch err := j.nodes[i].setClock(by); {
	case err == nil:
		j.count("clock step")
		j.seen.note("node %d: clock stepped by %v", i, by)
	case !errors.Is(err, syscall.ESRCH):
		j.found(&j.verdict.other, "clock of node %d: %v", i, err)
	}
	if rng.IntN(2) == 0 {
		j.kill(i)
	}
}

// lasting injects a fault of node i for a while. Afterwards connections need as long again to recover.
func (j *testJob) lasting(what string, i int, d time.Duration, begin, end func() error) {
	j.t.Helper()
	j.faults.Add(1)
	j.nodes[i].lives.Add(1)
	err := begin()
	if err == nil {
		j.count(what)
		j.seen.note("node %d: %s for %v", i, what, d)
		time.Sleep(d)
		err = end()
		j.seen.note("node %d: %s over", i, what)
	}
	j.turned.Store(time.Now().Add(d + time.Second).UnixNano())
	j.faults.Add(-1)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		j.found(&j.verdict.other, "%s of node %d: %v", what, i, err)
	}
}

// count counts a fault.
func (j *testJob) count(what string) { j.done[what]++ }

// counts returns the faults so far.
func (j *testJob) counts() string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(j.done)) {
		all = append(all, fmt.Sprintf("%s %d", what, j.done[what]))
	}
	return strings.Join(all, ", ")
}

// signal sends a signal to a node's daemon; ESRCH if none runs.
func (x *node) signal(s syscall.Signal) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pid == 0 {
		return syscall.ESRCH
	}
	return syscall.Kill(x.pid, s)
}
