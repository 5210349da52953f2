package mount

import (
	"context"
	"sync"
	"time"
)

// grace is how long an interrupted request may go on. A process that handles a signal
// does not expect EINTR from a file, as it never gets it from a disk: only a request that
// hangs is interrupted.
const grace = 300 * time.Millisecond

// request is the context of one request of the kernel. It is done when the request was
// interrupted and the grace has passed. It costs nothing unless Done is called.
type request struct {
	cancel <-chan struct{} // closed by the FUSE library when the request is interrupted
	traced bool            // what is wanted
	what   string          // the name or the range, for the trace

	mu    sync.Mutex
	done  chan struct{} // under mu; nil until Done is called
	ended chan struct{} // under mu; closed by end
	over  bool          // under mu: end was called
}

var _ context.Context = (*request)(nil)

func newRequest(cancel <-chan struct{}) *request { return &request{cancel: cancel} }

// Deadline is context.Context. Calls have their own deadlines.
func (r *request) Deadline() (time.Time, bool) { return time.Time{}, false }

// Value is context.Context.
func (r *request) Value(any) any { return nil }

// Done is context.Context.
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

// Err is context.Context.
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

// watch ends with the request.
func (r *request) watch(done, ended chan struct{}) {
	select {
	case <-ended:
		return
	case <-r.cancel:
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
		close(done)
	}
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
