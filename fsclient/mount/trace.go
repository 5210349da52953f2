package mount

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/bivouacfs/bivouac/metadata"
)

// Request is a request of the kernel that was answered.
type Request struct {
	At    time.Time
	Op    string
	Ino   metadata.Ino // of a name: its directory
	Pid   uint32       // 0 if the kernel asked by itself
	What  string       // the name, or which bytes
	Took  time.Duration
	Error error
}

// Trace has f told of every request from now on; nil ends that. Who asks waits
// for f.
func (m *Mount) Trace(f func(Request)) {
	if f == nil {
		m.fs.trace.Store(nil)
		return
	}
	m.fs.trace.Store(&f)
}

// traced is ctx if somebody wants to know what the request is about.
func traced(ctx context.Context) *request {
	if r, ok := ctx.(*request); ok && r.traced {
		return r
	}
	return nil
}

func (r *request) told(f *func(Request), o op, h *fuse.InHeader, start time.Time, err error) {
	(*f)(Request{At: start, Op: o.String(), Ino: metadata.Ino(h.NodeId), Pid: h.Pid, What: r.what, Took: time.Since(start), Error: errnoOnly(err)})
}

// span is bytes of a file, for people.
func span(off, n uint64) string { return strconv.FormatUint(off, 10) + "+" + strconv.FormatUint(n, 10) }

// errnoOnly is the errno in err, whose text says the rest of the line again.
func errnoOnly(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
