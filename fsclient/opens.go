package fsclient

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/appends"
)

const (
	// closesWait is how long closes are collected before they are sent to their homes.
	closesWait = 50 * time.Millisecond
	// againAfter is the delay before a home that did not answer is called again.
	againAfter = time.Second
	// maxRecalled bounds the files in one answer to a Recall.
	maxRecalled = 4096
)

var _ metadata.Recaller = (*Client)(nil)

// release ends a use of f. The last close on this node is reported to the home in the
// background, together with others.
func (c *Client) release(f *File) {
	if f.ino.Sealed() {
		return
	}
	if !c.files.release(f) {
		return
	}
	f.mu.Lock()
	changed := f.gen > 0
	f.mu.Unlock()
	if changed {
		f.buffer.Closed()
	}
	if f.ino.Home() == c.cfg.Self {
		closeReporter{c}.reportNow(c.ctx, c.cfg.Self)
	}
	if c.files.pending() {
		c.closed.Set()
	}
}

// closeReporter reports closes to the homes.
type closeReporter struct{ c *Client }

// run reports closes until the client is closed. At most one call to a home is in flight; a home that hangs delays no
// other.
func (r closeReporter) run() {
	c := r.c
	wait.Batches(c.ctx, c.closed, closesWait, c.files.pending, func() time.Duration {
		for home, files := range c.files.takeAllClosed() {
			c.wg.Go(func() {
				if !r.report(c.ctx, home, files) {
					retry.Pause(c.ctx, againAfter)
				}
				c.files.reported(home)
				c.closed.Set() // for files closed meanwhile
			})
		}
		return closesWait
	})
}

// reportNow reports the closes of a home's files at once.
func (r closeReporter) reportNow(ctx context.Context, home metadata.NodeID) {
	if files := r.c.files.takeClosed(home); len(files) > 0 {
		r.report(ctx, home, files)
	}
}

// report makes one call; it returns false if the call must be repeated. A home that was given up needs no report.
func (r closeReporter) report(ctx context.Context, home metadata.NodeID, files []metadata.Opened) bool {
	c := r.c
	s, err := c.nodes.Meta(home)
	if err == nil {
		var o metadata.Opens
		if o, err = opensOf(s); err == nil {
			err = o.Closed(ctx, c.holder(), files)
		}
	}
	if err == nil || errors.Is(c.nodes.HomeAlive(home), syscall.EHOSTDOWN) {
		return true
	}
	c.cfg.Log.WithError(err).WithField("node", home).Debug("closes not delivered to the files' home: retrying")
	c.files.putBack(files)
	return false
}

// Recall implements metadata.Recaller.
func (c *Client) Recall(q metadata.Recall) metadata.Recalled {
	r := recalled(c, q)
	ctx, cancel := context.WithTimeout(c.ctx, appends.AloneTerm/2) // the home does not wait much longer for an answer
	defer cancel()
	for _, ino := range q.Only {
		if f := c.files.get(ino); f != nil {
			r.Busy = f.buffer.DrainBegun(ctx) != nil || r.Busy // the Writers report what was lost
		}
	}
	return r
}

// recalled returns the answer to q. From now on c must assume that other nodes have these files open.
func recalled(c *Client, q metadata.Recall) metadata.Recalled {
	t := &c.files
	t.mu.Lock()
	defer t.mu.Unlock()
	r := metadata.Recalled{Run: c.cfg.Run, Floor: t.floor()}
	add := func(ino metadata.Ino) {
		if f := t.open[ino]; f != nil {
			f.mu.Lock()
			f.endAlone()
			var flight metadata.Reservation
			var placed []metadata.Extent
			if len(q.Only) == 0 { // else the home knows its appends
				flight, placed = f.app.Report()
				f.homeRun = 0
			}
			r.Files = append(r.Files, metadata.Opened{
				Ino: ino, Ticket: f.ticket, Unsure: f.unsure, Outstanding: flight, Written: placed,
				Locks: c.locks.Held(ino), Maps: f.maps || f.mapsAsked > 0,
			})
			f.mu.Unlock()
		}
	}
	for _, ino := range q.Only {
		add(ino)
	}
	if len(q.Only) > 0 {
		return r
	}
	for ino := range t.open {
		if ino.Home() == q.Home && ino > q.After {
			add(ino)
		}
	}
	slices.SortFunc(r.Files, func(a, b metadata.Opened) int { return cmp.Compare(a.Ino, b.Ino) })
	if len(r.Files) > maxRecalled {
		r.Files, r.More = r.Files[:maxRecalled], true
	}
	return r
}
