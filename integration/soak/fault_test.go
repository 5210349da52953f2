package soak

import (
	"errors"
	"math/rand/v2"
	"syscall"
	"time"
)

var errNotCalm = errors.New("there was a fault a moment ago")

// fault injects one fault, and returns when it is over; a killed daemon is started again by its keeper later.
func (j *testJob) fault(rng *rand.Rand) {
	i := rng.IntN(len(j.nodes))
	last := time.Duration(200+rng.IntN(2000)) * time.Millisecond
	switch n := rng.IntN(11); {
	case n < 4:
		for k := range 1 + rng.IntN(3)/2 {
			if j.nodes[(i+k)%len(j.nodes)].kill() {
				j.kills++
			}
		}
	case n < 6:
		fill := j.nodes[i].fill
		if rng.IntN(3) == 0 { // and its daemon has to start there
			fill = func() error {
				err := j.nodes[i].fill()
				if j.nodes[i].kill() {
					j.kills++
				}
				return err
			}
		}
		if j.lasting(i, last, fill, j.nodes[i].free) {
			j.fills++
		}
	case n < 8:
		if j.lasting(i, last, func() error { return j.nodes[i].signal(syscall.SIGSTOP) }, func() error { return j.nodes[i].signal(syscall.SIGCONT) }) {
			j.stops++
		}
	case n < 10:
		if j.lasting(i, last, func() error { return j.net.do("cut", i) }, func() error { return j.net.do("mend", i) }) {
			j.cuts++
		}
	default:
		to := (i + 1 + rng.IntN(len(j.nodes)-1)) % len(j.nodes)
		if j.lasting(i, last, func() error { return j.net.do("cut-to", i, to) }, func() error { return j.net.do("mend-to", i, to) }) {
			j.cuts++
		}
	}
}

// lasting injects a fault of node i for a while. Afterwards connections need as long again to find each other.
func (j *testJob) lasting(i int, d time.Duration, begin, end func() error) bool {
	j.t.Helper()
	j.faults.Add(1)
	j.nodes[i].lives.Add(1)
	err := begin()
	if err == nil {
		time.Sleep(d)
		err = end()
	}
	j.turned.Store(time.Now().Add(d + time.Second).UnixNano())
	j.faults.Add(-1)
	if err != nil && !errors.Is(err, syscall.ESRCH) {
		j.t.Errorf("a fault of node %d: %v", i, err)
	}
	return err == nil
}

// signal sends a signal to the daemon of a node; ESRCH if there is none just now.
func (x *node) signal(s syscall.Signal) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.pid == 0 {
		return syscall.ESRCH
	}
	return syscall.Kill(x.pid, s)
}
