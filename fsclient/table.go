package fsclient

import (
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// fileTable is the live files that are open on this node, and what their homes
// have not been told about that.
type fileTable struct {
	mu       sync.Mutex
	ticket   metadata.Ticket                  // under mu: the last one
	seq      uint64                           // under mu: of the last append
	open     map[metadata.Ino]*File           // under mu
	closed   map[metadata.Ino]metadata.Opened // under mu: not open any more, but for their homes
	creating map[metadata.Ticket]struct{}     // under mu: creates that are not answered yet
	settle   map[*File]struct{}               // under mu: files whose home has to hear of appends
}

func (t *fileTable) init() {
	t.open = make(map[metadata.Ino]*File)
	t.closed = make(map[metadata.Ino]metadata.Opened)
	t.creating = make(map[metadata.Ticket]struct{})
	t.settle = make(map[*File]struct{})
}

func (t *fileTable) acquire(c *Client, ino metadata.Ino) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.ref(c, ino, 0)
}

// ref counts a use of ino's file, which is made if it is not there. Its home
// may know the ticket already; 0 is none.
func (t *fileTable) ref(c *Client, ino metadata.Ino, ticket metadata.Ticket) *File {
	f := t.open[ino]
	if f == nil {
		f = newFile(c, ino)
		f.ticket = max(ticket, t.closed[ino].Ticket)
		f.unsure = t.closed[ino].Unsure
		if f.ticket == 0 {
			t.ticket++
			f.ticket = t.ticket
		}
		delete(t.closed, ino)
		t.open[ino] = f
	}
	f.refs++
	return f
}

// nextSeq numbers the appends of all files.
func (t *fileTable) nextSeq() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seq++
	return t.seq
}

// create is the ticket of a create that begins.
func (t *fileTable) create() metadata.Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ticket++
	t.creating[t.ticket] = struct{}{}
	return t.ticket
}

// created is the file that the create with that ticket has made.
func (t *fileTable) created(c *Client, ino metadata.Ino, ticket metadata.Ticket) *File {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.creating, ticket)
	return t.ref(c, ino, ticket)
}

// notCreated ends a create that has made nothing.
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

// hold counts another use of f; false if it is not open any more.
func (t *fileTable) hold(f *File) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open[f.ino] != f {
		return false
	}
	f.refs++
	return true
}

// release reports whether that was the last use of f. Its home has to be told.
func (t *fileTable) release(f *File, unsure bool) (last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.refs--
	if f.refs > 0 {
		return false
	}
	delete(t.open, f.ino)
	delete(t.settle, f)
	t.closed[f.ino] = metadata.Opened{Ino: f.ino, Ticket: f.ticket, Unsure: unsure || f.unsure}
	return true
}

// floor is the first ticket that may be that of a create under way. A close
// with a later one has to wait: it could end what that create has opened.
func (t *fileTable) floor() metadata.Ticket {
	floor := t.ticket + 1
	for c := range t.creating {
		floor = min(floor, c)
	}
	return floor
}

// takeClosed takes out the closes that can be told to their homes: of all
// homes, or of one.
func (t *fileTable) takeClosed(want func(metadata.NodeID) bool) map[metadata.NodeID][]metadata.Opened {
	t.mu.Lock()
	defer t.mu.Unlock()
	floor := t.floor()
	homes := make(map[metadata.NodeID][]metadata.Opened)
	for ino, o := range t.closed {
		if home := ino.Home(); o.Ticket < floor && want(home) {
			homes[home] = append(homes[home], o)
			delete(t.closed, ino)
		}
	}
	return homes
}

// untold puts closes back that could not be told.
func (t *fileTable) untold(files []metadata.Opened) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, o := range files {
		f, again := t.open[o.Ino], t.closed[o.Ino]
		switch {
		case f != nil: // its own close will do
			f.unsure = f.unsure || o.Unsure
		case again.Ticket < o.Ticket:
			t.closed[o.Ino] = o
		}
	}
}

func (t *fileTable) pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.closed) > 0
}

func (t *fileTable) unsettled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.settle) > 0
}

// takeUnsettled takes out the files that ok likes, but for those that were taken
// out before, until settledOnce.
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

func (t *fileTable) settledOnce(f *File) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f.settling = false
}

func (t *fileTable) len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}
