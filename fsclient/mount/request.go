package mount

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// grace is how long an interrupted request may continue, and the interval between checks of its process. A process that
// handles a signal does not expect EINTR from a file, because a disk never returns it: only a signal that kills the
// process interrupts a request. Waits for locks are interrupted by every signal.
const grace = 300 * time.Millisecond

// request is the context of one kernel request. It is done when the request was interrupted, the grace has passed, and
// a fatal signal is pending. It costs nothing unless Done is called.
type request struct {
	cancel <-chan struct{} // closed by the FUSE library when the request is interrupted
	pid    uint32          // the waiting thread; 0: unknown
	waits  bool            // every signal ends it
	traced bool            // what is recorded
	what   string          // the name or the range, for the trace

	mu    sync.Mutex
	done  chan struct{} // under mu; nil until Done is called
	ended chan struct{} // under mu; closed by end
	over  bool          // under mu: end was called
}

var _ context.Context = (*request)(nil)

func newRequest(cancel <-chan struct{}, pid uint32) *request {
	return &request{cancel: cancel, pid: pid}
}

// Deadline implements context.Context. Calls have their own deadlines.
func (r *request) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value implements context.Context.
func (r *request) Value(any) any { return nil }

// Done implements context.Context.
func (r *request) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		r.done = make(chan struct{})
		if !r.over {
			r.ended = make(chan struct{})
			go r.watch(r.done, r.ended)
		}
	}
	return r.done
}

// Err implements context.Context.
func (r *request) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		return nil
	}
	select {
	case <-r.done:
		return context.Canceled
	default:
		return nil
	}
}

// watch closes done once an interrupted request may be abandoned. It returns when the request ends.
func (r *request) watch(done, ended chan struct{}) {
	select {
	case <-ended:
		return
	case <-r.cancel:
	}
	t := time.NewTicker(grace)
	defer t.Stop()
	for {
		select {
		case <-ended:
			return
		case <-t.C:
		}
		if r.waits || r.pid == 0 || dying(r.pid) {
			close(done)
			return
		}
	}
}

// dying reports whether the thread has a pending signal that ends its process, or no longer exists.
func dying(tid uint32) bool {
	b, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	return err != nil || fatalIn(string(b))
}

// harmless is the set of signals that do not end a process by default: CHLD, CONT, STOP, TSTP, TTIN, TTOU, URG and
// WINCH.
const harmless = 1<<16 | 1<<17 | 1<<18 | 1<<19 | 1<<20 | 1<<21 | 1<<22 | 1<<27

// fatalIn reports whether the status of a thread in /proc shows a pending signal that ends the process and is not
// blocked, ignored or handled.
func fatalIn(status string) bool {
	mask := make(map[string]uint64)
	for line := range strings.Lines(status) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.HasPrefix(k, "Sig") || k == "ShdPnd" {
			mask[k], _ = strconv.ParseUint(strings.TrimSpace(v), 16, 64) // SigQ is no mask
		}
	}
	return (mask["SigPnd"]|mask["ShdPnd"])&^(mask["SigBlk"]|mask["SigIgn"]|mask["SigCgt"]|harmless) != 0
}

// end is called when the request is answered.
func (r *request) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
	if r.ended != nil {
		close(r.ended)
		r.ended = nil
	}
}
