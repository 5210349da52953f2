package soak

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/daemon/job"
)

// verdict is the figures of a run. All but full and longest are to be 0.
type verdict struct {
	lost    atomic.Int64 // acknowledged writes and names that are not there
	wrong   atomic.Int64 // reads that returned bytes that were never written at that place
	missing atomic.Int64 // ENOENT of what exists
	hung    atomic.Int64 // operations that took longer than answerTime since the last fault
	other   atomic.Int64 // errors without a fault, exits of daemons, leftovers

	full    atomic.Int64 // operations that failed with ENOSPC
	longest atomic.Int64 // nanoseconds of an operation since the last fault
}

// answerTime is how long an operation may take after the last fault: nodes without a daemon are given up by then.
const answerTime = job.DefaultFailureTimeout + 2*time.Second

// String has a form that integration/bench reads.
func (v *verdict) String() string {
	return fmt.Sprintf("acknowledged writes lost %d, wrong bytes %d, ENOENT of what exists %d, hangs beyond give-up + 2 s %d, other errors %d; longest operation after a fault %v, %d times ENOSPC",
		v.lost.Load(), v.wrong.Load(), v.missing.Load(), v.hung.Load(), v.other.Load(), time.Duration(v.longest.Load()).Round(time.Millisecond), v.full.Load())
}

// found counts an error of the test.
func (j *testJob) found(n *atomic.Int64, format string, args ...any) {
	j.t.Helper()
	n.Add(1)
	j.t.Errorf(time.Now().Format("15:04:05.000 ")+format, args...)
}

// operation is one of a load.
type operation struct {
	what   string
	node   *int // through whose mount; set when do returns
	exists bool // what it is about, for certain
	stale  bool // it may meet another one that moves a directory: the kernel then has ESTALE of its own
	do     func() error
}

// try runs an operation, and reports whether it was acknowledged. An error is the test's if there was no fault
// meanwhile, or if it says that there is nothing.
func (j *testJob) try(o operation) bool {
	deaths, calm := j.moment()
	began := time.Now()
	late := j.suspect(o.what)
	err := o.do()
	late.Stop()
	j.timed(o.what, began, *o.node)
	if err == nil || j.nodes[*o.node].lost.Load() {
		return err == nil
	}
	now, still := j.moment()
	switch excused := !calm || !still || now != deaths; {
	case o.exists && errors.Is(err, os.ErrNotExist):
		j.found(&j.verdict.missing, "%s: %v, and it exists", o.what, err)
	case errors.Is(err, syscall.ENOSPC):
		if j.verdict.full.Add(1); !excused {
			j.found(&j.verdict.other, "%s, without a full drive: %v", o.what, err)
		}
	case !excused && !(o.stale && errors.Is(err, syscall.ESTALE)):
		j.found(&j.verdict.other, "%s, without a fault: %v", o.what, err)
	}
	return false
}

// timed measures an operation that has ended, from the last fault on: of any node, or of its own, whose daemon it waits
// for. One that takes over a mount answers before it is ready. While half of the nodes are dead nothing is given up, so
// operations wait until one of them is back.
func (j *testJob) timed(what string, began time.Time, node int) {
	if !j.nodes[node].ready.Load() || !j.quorate() {
		return
	}
	from := max(began.UnixNano(), j.turned.Load(), j.nodes[node].since.Load())
	took := time.Duration(time.Now().UnixNano() - from)
	for was := j.verdict.longest.Load(); int64(took) > was && !j.verdict.longest.CompareAndSwap(was, int64(took)); {
		was = j.verdict.longest.Load()
	}
	if took > answerTime {
		j.found(&j.verdict.hung, "%s: took %v, %v of it after the last fault", what, time.Since(began), took)
	}
}

// quorate reports whether more than half of the nodes that are not lost are ready.
func (j *testJob) quorate() bool {
	ready, all := 0, 0
	for _, x := range j.nodes {
		if x.lost.Load() {
			continue
		}
		if all++; x.ready.Load() {
			ready++
		}
	}
	return 2*ready > all
}
