package daemon

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// TraceLine is one request of the kernel to the mount of this node.
type TraceLine struct {
	At      time.Time     `json:"at"`
	Op      string        `json:"op,omitempty"`
	Ino     metadata.Ino  `json:"ino,omitempty"`
	Pid     uint32        `json:"pid,omitempty"`
	What    string        `json:"what,omitempty"` // the name, or the byte range
	Took    time.Duration `json:"took_ns,omitempty"`
	Error   string        `json:"error,omitempty"`
	Dropped int64         `json:"dropped,omitempty"` // lines before this one that were dropped, because the listener was too slow
}

// TraceFunc has the mount pass every request to a function; nil ends that.
type TraceFunc func(to func(TraceLine))

// SetTrace gives the daemon its way to the requests of the mount.
func (d *Daemon) SetTrace(f TraceFunc) {
	d.traces.mu.Lock()
	defer d.traces.mu.Unlock()
	d.traces.from = f
}

// maxTraces is how many listeners there may be; traceAhead is how many lines may wait for each.
const (
	maxTraces  = 8
	traceAhead = 8192
)

// traces is the listeners. Without one, no line is made.
type traces struct {
	mu   sync.Mutex
	from TraceFunc             // guarded by mu; nil before there is a mount
	to   map[*traceTo]struct{} // guarded by mu
}

// traceTo is a listener.
type traceTo struct {
	lines chan TraceLine
	lost  int64 // guarded by traces.mu
}

func (t *traces) add() (*traceTo, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.from == nil:
		return nil, fmt.Errorf("trace: the mount is not there yet: %w", syscall.EINVAL)
	case len(t.to) == maxTraces:
		return nil, fmt.Errorf("trace: %d listen already: %w", maxTraces, syscall.EINVAL)
	}
	if t.to == nil {
		t.to = make(map[*traceTo]struct{})
	}
	x := &traceTo{lines: make(chan TraceLine, traceAhead)}
	t.to[x] = struct{}{}
	if len(t.to) == 1 {
		t.from(t.tell)
	}
	return x, nil
}

func (t *traces) remove(x *traceTo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.to, x)
	if len(t.to) == 0 {
		t.from(nil)
	}
}

// tell gives a line to all listeners. One that is too slow misses it.
func (t *traces) tell(l TraceLine) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for x := range t.to {
		l.Dropped = x.lost
		select {
		case x.lines <- l:
			x.lost = 0
		default:
			x.lost++
		}
	}
}

// getTrace answers with a line of JSON for every request of the mount, until the
// caller goes away.
func (c *ctlServer) getTrace(w http.ResponseWriter, r *http.Request) {
	x, err := c.d.traces.add()
	if err != nil {
		writeError(w, err)
		return
	}
	defer c.d.traces.remove(x)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w)
	e := json.NewEncoder(w)
	for err == nil {
		err = flush.Flush()
		for more := true; more && err == nil; {
			select {
			case l := <-x.lines:
				err = e.Encode(l)
				more = len(x.lines) > 0
			case <-r.Context().Done():
				return
			}
		}
	}
}

// Trace calls see with every request to the mount from now on, until ctx ends.
// begun is called before the first can come.
func (c *Ctl) Trace(ctx context.Context, begun func(), see func(TraceLine) error) error {
	resp, err := c.send(ctx, http.MethodGet, "/v1/trace", nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	begun()
	dec := json.NewDecoder(bufio.NewReaderSize(resp.Body, 1<<16))
	for {
		var l TraceLine
		err := dec.Decode(&l)
		if err == nil {
			err = see(l)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == io.EOF:
			return fmt.Errorf("the daemon has ended: %w", syscall.ECONNRESET)
		case err != nil:
			return err
		}
	}
}
