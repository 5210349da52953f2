package fsclient

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bivouacfs/bivouac/fsclient/pagecache"
	"github.com/bivouacfs/bivouac/fsclient/stripe"
	"github.com/bivouacfs/bivouac/fsclient/wait"
	"github.com/bivouacfs/bivouac/fsclient/writeback"
	"github.com/bivouacfs/bivouac/metadata"
)

// File is a regular file that is open on this node; all its descriptors here share one File. A file of a dataset can
// only be read.
type File struct {
	c   *Client
	ino metadata.Ino

	ticket   metadata.Ticket // of its open, as known to its home
	refs     int             // under fileTable.mu
	unsure   bool            // under fileTable.mu: an earlier use wrote bytes unknown to every home
	settling bool            // under fileTable.mu: appends are being reported to its home

	// sizeTurn is held while a size is sent to the home, so that no older size
	// undoes a truncate.
	sizeTurn wait.Mutex
	// syncTurn is held while nodes sync, so that a Sync does not return before another one, which has taken the list of
	// nodes, has finished.
	syncTurn wait.Mutex
	app      appending
	buffer   *writeback.Buffer
	content  atomic.Pointer[content] // read ahead; may be nil

	mu       sync.Mutex
	attr     metadata.Attr                // under mu: as last returned by the home
	since    metadata.Time                // under mu: its st_ctime at its first open here
	order    []metadata.NodeID            // under mu: nodes of its stripe; nil until known
	gen      uint64                       // under mu: counts the changes made here
	dirty    bool                         // under mu: the home does not know of all writes
	end      int64                        // under mu: the end of those writes
	later    int64                        // under mu: the end of those that began after the last call to the home
	atHome   bool                         // under mu: the home knows that it is open here
	homeRun  metadata.Run                 // under mu: metadata.Holding.Run; 0 after a restart of the home
	failed   bool                         // under mu: there may be bytes unknown to every home
	drops    bool                         // under mu: writes drop setuid and setgid
	shown    pagecache.Shown              // under mu: validates the kernel's pages
	reserved int64                        // under mu: the end of the space allocated behind the end of the file
	unsynced map[metadata.NodeID]struct{} // under mu: nodes written to since the last Sync
	existed  bool                         // under mu: opened, not created, here; no Sync since then
	maps     bool                         // under mu: this node, and no other, may map it shared and writable
	// alone is under mu: no other node had the file open, by the home's last answer.
	alone     bool
	mapsAsked int // under mu: requests in flight for the right to map it
}

// Open opens the file ino. Every Open needs a Close. If the inode was removed it returns ESTALE: the caller may look
// the name up again.
func (c *Client) Open(ctx context.Context, ino metadata.Ino) (*File, error) {
	return c.open(ctx, ino, false)
}

// OpenToMap is Open for a descriptor that could be mapped shared and writable: Maps reports whether it may be.
func (c *Client) OpenToMap(ctx context.Context, ino metadata.Ino) (*File, error) {
	return c.open(ctx, ino, true)
}

// Reopen is Open, or OpenToMap, for a descriptor that an earlier process of this node opened: the kernel may have old
// pages, and the nodes of the file may have bytes that are not durable.
func (c *Client) Reopen(ctx context.Context, ino metadata.Ino, maps bool) (*File, error) {
	f, err := c.open(ctx, ino, maps)
	if err != nil || ino.Sealed() {
		return f, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since, f.shown = unknownTime, pagecache.Shown{}
	f.touch(f.order)
	return f, nil
}

// unknownTime is a time that no file has.
const unknownTime metadata.Time = -1

func (c *Client) open(ctx context.Context, ino metadata.Ino, maps bool) (*File, error) {
	var f *File
	var a metadata.Attr
	var err error
	if ino.Sealed() {
		f = newFile(c, ino)
		a, err = c.Getattr(ctx, ino)
	} else {
		f = c.files.acquire(c, ino)
		a, err = f.openAtHome(ctx, maps)
	}
	if err == nil {
		err = f.begin(ctx, a)
	}
	if err != nil {
		c.release(f)
		return nil, stale(err)
	}
	return f, nil
}

// CreateOpen creates a regular file and opens it, in one call. With EEXIST the Attr is that of the existing file. With
// an empty name the file has no name until Link.
func (c *Client) CreateOpen(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (*File, metadata.Attr, error) {
	return c.createOpen(ctx, dir, name, n, false)
}

// CreateToMap is to CreateOpen what OpenToMap is to Open.
func (c *Client) CreateToMap(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (*File, metadata.Attr, error) {
	return c.createOpen(ctx, dir, name, n, true)
}

func (c *Client) createOpen(ctx context.Context, dir metadata.Ino, name string, n metadata.New, maps bool) (*File, metadata.Attr, error) {
	if dir.Sealed() {
		return nil, metadata.Attr{}, readOnly(dir)
	}
	c.setNewLayout(&n)
	o := metadata.Opening{Ticket: c.files.create(), Maps: maps}
	var h metadata.Holding
	a, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (metadata.Attr, error) {
		opens, err := opensOf(s)
		if err != nil {
			return metadata.Attr{}, err
		}
		h, err = opens.CreateOpen(ctx, c.holder(), o, dir, name, n)
		return h.Attr, err
	})
	if err != nil {
		c.files.notCreated(o.Ticket)
		c.changedHere(err, attrKey(dir), entryKey(dir, name)) // the caller's view was out of date
		return nil, a, err
	}
	if name != "" {
		c.entryChanged(dir, &a)
	}
	f := c.files.created(c, a.Ino, o.Ticket)
	f.mu.Lock()
	f.atHome = true
	f.holds(h, 0)
	f.mu.Unlock()
	if err := f.begin(ctx, a); err != nil {
		c.release(f)
		return nil, a, err
	}
	return f, a, nil
}

func newFile(c *Client, ino metadata.Ino) *File {
	f := &File{
		c: c, ino: ino, sizeTurn: wait.NewMutex(), syncTurn: wait.NewMutex(), app: appending{turn: wait.NewMutex()},
		attr: metadata.Attr{Ino: ino},
	}
	f.buffer = c.pool.Buffer(bufferedFile{f})
	return f
}

// openAtHome reports to the home that the file is open here, and returns its attributes. With maps it asks for the
// right to map the file.
func (f *File) openAtHome(ctx context.Context, maps bool) (metadata.Attr, error) {
	f.mu.Lock()
	o := metadata.Opening{Ticket: f.ticket, Maps: maps && !f.maps}
	atHome, run, recalls := f.atHome, f.homeRun, f.app.recalls
	f.mu.Unlock()
	if atHome && run != 0 && !o.Maps {
		return f.refresh(ctx)
	}
	f.asksToMap(o, 1) // if the home restarts before it answers, Recall must report this
	defer f.asksToMap(o, -1)
	s, err := f.c.nodes.Home(f.ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	opens, err := opensOf(s)
	if err != nil {
		return metadata.Attr{}, err
	}
	h, err := opens.Open(ctx, f.c.holder(), f.ino, o)
	if err != nil {
		return metadata.Attr{}, err
	}
	f.mu.Lock()
	f.atHome = true
	f.holds(h, recalls)
	if recalls == f.app.recalls {
		f.homeRun = h.Run
	}
	if h.Attr.Ctime >= f.attr.Ctime { // else a later answer has overtaken it
		f.attr = h.Attr
	}
	known := f.known()
	f.mu.Unlock()
	if atHome { // the home may not know of all writes
		return f.refresh(ctx)
	}
	return known, nil
}

// holds records what the home answered about other nodes. recalls is the number of recalls when the request was sent;
// f.mu is held.
func (f *File) holds(h metadata.Holding, recalls uint64) {
	f.maps = f.maps || h.Maps
	f.alone = h.Alone && recalls == f.app.recalls
}

// asksToMap counts the requests in flight for the right to map the file.
func (f *File) asksToMap(o metadata.Opening, n int) {
	if o.Maps {
		f.mu.Lock()
		f.mapsAsked += n
		f.mu.Unlock()
	}
}

// Alone reports whether no other node had the file open by the home's last answer: to the first open here, or to an
// append.
func (f *File) Alone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alone
}

// Maps reports whether this node, and no other, may map the file shared and writable.
func (f *File) Maps() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.maps
}

// begin fills in the stripe order and the version that a new File does not have yet.
func (f *File) begin(ctx context.Context, a metadata.Attr) error {
	f.mu.Lock()
	known := f.order != nil
	if f.since == 0 {
		f.since = a.Ctime
		f.shown.Opened(a)
	}
	f.mu.Unlock()
	if known {
		return nil
	}
	order, err := f.c.nodes.Order(ctx, f.ino, a.Layout)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.order == nil {
		f.order = order
		if f.attr.Mode == 0 || a.Ctime >= f.attr.Ctime {
			f.attr = a
		}
	}
	return nil
}

// Close flushes and releases the file.
func (f *File) Close(ctx context.Context) error {
	err := f.Flush(ctx)
	f.c.release(f)
	return err
}

// Ino returns the file's inode.
func (f *File) Ino() metadata.Ino { return f.ino }

// Order returns the nodes of the file's stripe; the caller must not change it.
func (f *File) Order() []metadata.NodeID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.order
}

// Attr returns the attributes as this node knows them, without a call.
func (f *File) Attr() metadata.Attr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known()
}

// HomeRun returns a number that changes when the home has restarted: a client that died with the home, or before the
// restarted home has asked all clients, may have written bytes unknown to every home. 0 is unknown.
func (f *File) HomeRun() metadata.Run {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.homeRun
}

// Changed reports whether the file with the attributes a has changed since it was first opened here.
func (f *File) Changed(a metadata.Attr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return a.Ctime != f.since
}

// PagesMtime returns the st_mtime with which the kernel validates its pages: see pagecache.Shown.
func (f *File) PagesMtime(a metadata.Attr) metadata.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown.Mtime(a)
}

// PagesMiss records, before a change, that the kernel's pages may lack it.
func (f *File) PagesMiss() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown.Missed()
}

// known returns the same as Attr; f.mu is held.
func (f *File) known() metadata.Attr {
	a := f.attr
	a.Size = max(a.Size, f.end, f.app.Seen())
	return a
}

// view returns the attributes and the stripe order for a read or write; f.mu is not held.
func (f *File) view() (metadata.Attr, []metadata.NodeID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known(), f.order
}

// ReadOpts are the options of a read.
type ReadOpts = stripe.ReadOpts

// Read fills p from offset off. Fewer bytes mean the end of the file as this node knows it.
func (f *File) Read(ctx context.Context, p []byte, off int64, o ReadOpts) (int, error) {
	if err := f.drain(ctx); err != nil {
		return 0, err
	}
	a, order := f.view()
	if !o.Direct {
		if off == 0 && f.content.Load() == nil {
			readAhead(ctx, f, &a, order)
		}
		if n, ok := f.fromAhead(p, off); ok {
			return n, nil
		}
	}
	return f.c.data.Read(ctx, &a, order, p, off, o)
}

// refresh is Getattr for an open file.
func (f *File) refresh(ctx context.Context) (metadata.Attr, error) {
	if err := f.drain(ctx); err != nil {
		return metadata.Attr{}, err
	}
	f.mu.Lock()
	dirty, unsettled := f.dirty, f.app.Unsettled()
	f.mu.Unlock()
	switch {
	case unsettled: // the answer has the attributes
		if err := f.settleAppends(ctx); err != nil {
			return metadata.Attr{}, err
		}
		if !f.isDirty() {
			return f.Attr(), nil
		}
		return f.publish(ctx)
	case dirty:
		return f.publish(ctx)
	}
	a, left := f.c.leases.Attr(f.ino)
	if left <= 0 {
		var err error
		if a, err = f.c.getattrLive(ctx, f.ino); err != nil {
			return metadata.Attr{}, f.missed(err)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.Ctime >= f.attr.Ctime { // else a later answer has overtaken it
		f.attr = a
	}
	return f.known(), nil
}

// missed records that the home does not know the inode, if err says so.
func (f *File) missed(err error) error {
	if errors.Is(err, syscall.ENOENT) {
		f.mu.Lock()
		f.dirty, f.failed = false, true
		f.mu.Unlock()
	}
	return stale(err)
}
