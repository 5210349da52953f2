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

// Request is an answered request of the kernel.
type Request struct {
	Op    string
	Ino   metadata.Ino // for a name, its directory
	Pid   uint32       // 0 for requests of the kernel itself
	What  string       // the name or the range
	Took  time.Duration
	Error error
}

// Trace calls f after every request from now on, before the answer.
func (m *Mount) Trace(f func(Request)) { m.fs.trace.Store(&f) }

// traced returns ctx as a request if requests are traced, else nil.
func traced(ctx context.Context) *request {
	if r, ok := ctx.(*request); ok && r.traced {
		return r
	}
	return nil
}

// note records the name or range that a traced request is about.
func note(ctx context.Context, what string) {
	if r := traced(ctx); r != nil {
		r.what = what
	}
}

func (r *request) report(f *func(Request), o op, h *fuse.InHeader, start time.Time, err error) {
	(*f)(Request{Op: o.String(), Ino: metadata.Ino(h.NodeId), Pid: h.Pid, What: r.what, Took: time.Since(start), Error: errnoOnly(err)})
}

// span formats a range of a file.
func span(off, n uint64) string { return strconv.FormatUint(off, 10) + "+" + strconv.FormatUint(n, 10) }

// errnoOnly returns the errno in err: the error's text would repeat the rest of the line.
func errnoOnly(err error) error {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return err
}
