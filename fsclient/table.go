package fsclient

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// fileTable is the table of live files that are open on this node, and of closes not yet reported to their homes.
type fileTable struct {
	mu       sync.Mutex
	ticket   metadata.Ticket              // under mu: the last ticket
	seq      uint64                       // under mu: of the last append
	open     map[metadata.Ino]*File       // under mu
	idle     map[metadata.Ino]time.Time   // under mu: open files without a use, by when they became idle
	closed   map[metadata.NodeID]closes   // under mu: to be reported to their homes
	telling  map[metadata.NodeID]struct{} // under mu: homes to which closes are being reported
	creating map[metadata.Ticket]struct{} // under mu: creates in flight
	settle   map[*File]struct{}           // under mu: files with appends to report to their home
	writing  int                          // under mu: Writers that are open for writing
}

// closes maps the closed files of one home.
type closes map[metadata.Ino]metadata.Opened

func (t *fileTable) init() {
	t.open = make(map[metadata.Ino]*File)
	t.idle = make(map[metadata.Ino]time.Time)
	t.closed = make(map[metadata.NodeID]closes)
	t.telling = make(map[metadata.NodeID]struct{})
	t.creating = make(map[metadata.Ticket]struct{})
	t.settle = make(map[*File]struct{})
}

func (t *fileTable) acquire(c *Client, ino metadata.Ino) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ref(c, ino, 0)
}

// ref counts a use of ino's file, and makes the File if it is not open. ticket is the one known to its home; 0 if it
// knows none.
func (t *fileTable) ref(c *Client, ino metadata.Ino, ticket metadata.Ticket) *File {
	f := t.open[ino]
	if f == nil {
		was := t.closed[ino.Home()]
		f = newFile(c, ino)
		f.ticket = max(ticket, was[ino].Ticket)
		f.unsure = was[ino].Unsure
		f.existed = ticket == 0
		if f.ticket == 0 {
			t.ticket++
			f.ticket = t.ticket
		}
		delete(was, ino)
		t.open[ino] = f
	}
	t.use(f)
	return f
}

// use counts one more use of f, which is open; t.mu is held.
func (t *fileTable) use(f *File) {
	f.refs++
	delete(t.idle, f.ino)
}

// nextSeq returns the next sequence number, shared by the appends of all files.
func (t *fileTable) nextSeq() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	return t.seq
}

// create returns the ticket of a create that begins.
func (t *fileTable) create() metadata.Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ticket++
	t.creating[t.ticket] = struct{}{}
	return t.ticket
}

// created returns the file made by the create with that ticket.
func (t *fileTable) created(c *Client, ino metadata.Ino, ticket metadata.Ticket) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.creating, ticket)
	return t.ref(c, ino, ticket)
}

// notCreated ends a create that has failed.
func (t *fileTable) notCreated(ticket metadata.Ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.creating, ticket)
}

func (t *fileTable) get(ino metadata.Ino) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[ino]
}

// hold counts one more use of f; it returns false if f is no longer open.
func (t *fileTable) hold(f *File) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[f.ino] != f {
		return false
	}
	t.use(f)
	return true
}

// holdIno counts one more use of ino's file; it returns nil if the file is not open.
func (t *fileTable) holdIno(ino metadata.Ino) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.open[ino]
	if f != nil {
		t.use(f)
	}
	return f
}

// release ends a use of f. After the last one f becomes idle if it may, or is closed: then the close must be reported.
// A recall either precedes mayIdle or closes the idle file. An open either precedes FileClosed or gets new locks.
func (t *fileTable) release(f *File) (closed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.refs--
	if f.refs > 0 {
		return false
	}
	f.c.locks.FileClosed(f.ino)
	if !f.unsure && len(t.idle) < maxIdle && f.mayIdle() {
		t.idle[f.ino] = f.c.cfg.Now()
		return false
	}
	t.drop(f)
	return true
}

// drop closes f, which has no use; t.mu is held.
func (t *fileTable) drop(f *File) {
	f.mu.Lock()
	unsure := f.failed || f.dirty
	f.mu.Unlock()
	f.forgetContent()
	delete(t.idle, f.ino)
	delete(t.open, f.ino)
	delete(t.settle, f)
	t.close(metadata.Opened{Ino: f.ino, Ticket: f.ticket, Unsure: unsure || f.unsure})
}

// floor returns the first ticket that may belong to a create in flight. A close with that or a later ticket must wait:
// it could close the file that the create has opened. t.mu is held.
func (t *fileTable) floor() metadata.Ticket {
	floor := t.ticket + 1
	for c := range t.creating {
		floor = min(floor, c)
	}
	return floor
}

// close keeps a close until it is reported; t.mu is held.
func (t *fileTable) close(o metadata.Opened) {
	home := o.Ino.Home()
	if t.closed[home] == nil {
		t.closed[home] = make(closes)
	}
	t.closed[home][o.Ino] = o
}

// takeClosed takes the closes that can be reported to a home.
func (t *fileTable) takeClosed(home metadata.NodeID) []metadata.Opened {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.takeClosedLocked(home)
}

func (t *fileTable) takeClosedLocked(home metadata.NodeID) (files []metadata.Opened) {
	floor := t.floor()
	of := t.closed[home]
	for ino, o := range of {
		if o.Ticket < floor {
			files = append(files, o)
			delete(of, ino)
		}
	}
	if len(of) == 0 {
		delete(t.closed, home)
	}
	return files
}

// takeAllClosed is takeClosed for all homes that have no report in flight. They have one from then on, until reported.
func (t *fileTable) takeAllClosed() map[metadata.NodeID][]metadata.Opened {
	t.mu.Lock()
	defer t.mu.Unlock()
	homes := make(map[metadata.NodeID][]metadata.Opened)
	for home := range t.closed {
		if _, telling := t.telling[home]; telling {
			continue
		}
		if files := t.takeClosedLocked(home); len(files) > 0 {
			t.telling[home] = struct{}{}
			homes[home] = files
		}
	}
	return homes
}

// reported ends the report to a home.
func (t *fileTable) reported(home metadata.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.telling, home)
}

// putBack puts back closes that could not be delivered.
func (t *fileTable) putBack(files []metadata.Opened) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range files {
		f, newer := t.open[o.Ino], t.closed[o.Ino.Home()][o.Ino]
		switch {
		case f != nil: // its own close informs the home
			f.unsure = f.unsure || o.Unsure
		case newer.Ticket < o.Ticket:
			t.close(o)
		}
	}
}

// pending reports whether there are closes for a home without a report in flight.
func (t *fileTable) pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for home, of := range t.closed {
		if _, telling := t.telling[home]; !telling && len(of) > 0 {
			return true
		}
	}
	return false
}

func (t *fileTable) unsettled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.settle) > 0
}

// takeUnsettled takes the files that satisfy ok and are not being settled. They count as being settled from then on,
// until settledOnce.
func (t *fileTable) takeUnsettled(ok func(*File) bool) (files []*File) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.settle {
		if !f.settling && ok(f) {
			f.settling = true
			files = append(files, f)
			delete(t.settle, f)
		}
	}
	return files
}

// settledOnce ends a settlement of f. With again, f is taken once more if it is open.
func (t *fileTable) settledOnce(f *File, again bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.settling = false
	if again && t.open[f.ino] == f {
		t.settle[f] = struct{}{}
	}
}

// writer adds n to the number of Writers that are open for writing.
func (t *fileTable) writer(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.writing += n
}

func (t *fileTable) writers() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.writing
}

func (t *fileTable) list() []*File {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.open))
}

func (t *fileTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open) - len(t.idle)
}
