package rpc

import (
	"context"
	"sync"
	"time"
)

// deadline is the context of one request: it ends with the connection, when the caller gives up, or
// with the reply. Its timer is made by the first call of Done, because most handlers never wait.
type deadline struct {
	conn context.Context
	at   time.Time

	mu     sync.Mutex
	ctx    context.Context    // guarded by mu; nil until Done is called
	cancel context.CancelFunc // under mu
	over   bool               // guarded by mu: end was called
}

var _ context.Context = (*deadline)(nil)

// Deadline is context.Context.
func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }

// Value is context.Context.
func (d *deadline) Value(key any) any { return d.conn.Value(key) }

// Done is context.Context.
func (d *deadline) Done() <-chan struct{} { return d.real().Done() }

// Err is context.Context.
func (d *deadline) Err() error {
	d.mu.Lock()
	ctx, over := d.ctx, d.over
	d.mu.Unlock()
	switch {
	case ctx != nil:
		return ctx.Err()
	case over:
		return context.Canceled
	case d.conn.Err() != nil:
		return d.conn.Err()
	case !time.Now().Before(d.at):
		return context.DeadlineExceeded
	}
	return nil
}

// real returns the context with a timer.
func (d *deadline) real() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx == nil {
		d.ctx, d.cancel = context.WithDeadline(d.conn, d.at)
		if d.over {
			d.cancel()
		}
	}
	return d.ctx
}

// end is called with the reply.
func (d *deadline) end() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.over = true
	if d.cancel != nil {
		d.cancel()
	}
}
