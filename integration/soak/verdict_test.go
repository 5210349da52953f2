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

// verdict holds the counts of a run. All but full and longest must be 0.
type verdict struct {
	lost    atomic.Int64 // missing acknowledged writes and names
	wrong   atomic.Int64 // reads of bytes that were never written at that place
	missing atomic.Int64 // ENOENT of existing entries
	hung    atomic.Int64 // operations that took longer than answerTime since the last fault
	other   atomic.Int64 // errors without a fault, exits of daemons, leftovers

	full    atomic.Int64 // operations that failed with ENOSPC
	longest atomic.Int64 // longest operation since the last fault, in nanoseconds
}

// answerTime bounds an operation after the last fault: nodes without a daemon are declared lost by then.
const answerTime = job.DefaultFailureTimeout + 2*time.Second

// String has a format that integration/bench parses.
func (v *verdict) String() string {
	return fmt.Sprintf("acknowledged writes lost %d, wrong bytes %d, ENOENT of what exists %d, hangs beyond give-up + 2 s %d, other errors %d; longest operation after a fault %v, %d times ENOSPC",
		v.lost.Load(), v.wrong.Load(), v.missing.Load(), v.hung.Load(), v.other.Load(), time.Duration(v.longest.Load()).Round(time.Millisecond), v.full.Load())
}

// found counts and reports an error.
func (j *testJob) found(n *atomic.Int64, format string, args ...any) {
	j.t.Helper()
	n.Add(1)
	j.t.Errorf(time.Now().Format("15:04:05.000 ")+format, args...)
}

// operation is one operation of a load.
type operation struct {
	what   string
	node   *int // the mount used; set when do returns
	exists bool // its object certainly exists
	stale  bool // a concurrent move of a directory may cause the kernel's own ESTALE
	do     func() error
}

// try runs an operation, and reports whether it was acknowledged. An error fails the test if there was no fault
// meanwhile, or if it is an ENOENT of an existing object.
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

// timed measures an operation that has ended, from the last fault on: of any node, or of its own, whose daemon it
// waits for. A daemon that takes over a mount answers before it is ready. While half of the nodes are dead no node is
// declared lost, so operations wait until one of them returns.
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
