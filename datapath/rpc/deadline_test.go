package rpc

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestLazyDeadline compares with the context of the standard library, whatever is called when.
func TestLazyDeadline(t *testing.T) {
	for _, c := range []struct {
		name   string
		at     time.Duration // from now
		before bool          // Done is asked for before do
		do     func(cancel func(), d *deadline)
		want   error
	}{
		{"nothing", time.Hour, false, func(func(), *deadline) {}, nil},
		{"nothing, waited for", time.Hour, true, func(func(), *deadline) {}, nil},
		{"the time is over", -time.Second, false, func(func(), *deadline) {}, context.DeadlineExceeded},
		{"the time is over, waited for", -time.Second, true, func(func(), *deadline) {}, context.DeadlineExceeded},
		{"the connection ends", time.Hour, false, func(cancel func(), _ *deadline) { cancel() }, context.Canceled},
		{"the connection ends, waited for", time.Hour, true, func(cancel func(), _ *deadline) { cancel() }, context.Canceled},
		{"answered", time.Hour, false, func(_ func(), d *deadline) { d.end() }, context.Canceled},
		{"answered, waited for", time.Hour, true, func(_ func(), d *deadline) { d.end() }, context.Canceled},
	} {
		conn, cancel := context.WithCancel(t.Context())
		d := &deadline{conn: conn, at: time.Now().Add(c.at)}
		if c.before {
			d.Done()
		}
		c.do(cancel, d)
		if err := d.Err(); !errors.Is(err, c.want) {
			t.Errorf("%s: Err = %v, want %v", c.name, err, c.want)
		}
		select {
		case <-d.Done():
			if c.want == nil {
				t.Errorf("%s: it is done", c.name)
			}
		default:
			if c.want != nil {
				t.Errorf("%s: it is not done", c.name)
			}
		}
		if err := d.Err(); !errors.Is(err, c.want) {
			t.Errorf("%s: Err after Done = %v, want %v", c.name, err, c.want)
		}
		child, stop := context.WithCancel(d)
		if c.want != nil {
			<-child.Done()
		}
		stop()
		cancel()
	}
}
