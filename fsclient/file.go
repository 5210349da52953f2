package fsclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
)

// publishEvery is how old what a writer has told its file's home may become
// while it goes on writing.
const publishEvery = time.Second

// File is a regular file that is open on this node; all who have it open share
// one File. Of a sealed file only reading works.
type File struct {
	c   *Client
	ino metadata.Ino

	ticket   metadata.Ticket // by which its home knows that it is open here
	refs     int             // under fileTable.mu
	unsure   bool            // under fileTable.mu: an earlier use had written what no home was told
	settling bool            // under fileTable.mu: its home is being told of appends

	// turn is taken while the home is told a size, so that a truncate is not
	// undone by an older size. It has room for the one who has it.
	turn chan struct{}
	// syncTurn is taken while nodes sync what they have, so that nobody believes
	// durable what another one waits for. It has room for the one who has it.
	syncTurn chan struct{}
	app      appending
	tail     tail

	mu       sync.Mutex
	attr     metadata.Attr                // under mu: as the home had it last
	since    metadata.Time                // under mu: its st_ctime when it was opened here first
	order    []metadata.NodeID            // under mu; nil until known
	gen      uint64                       // under mu: counts the changes made here
	dirty    bool                         // under mu: the home does not know of all writes
	end      int64                        // under mu: how far those writes went
	told     time.Time                    // under mu: when the home was told last
	attached bool                         // under mu: the home knows that it is open here
	failed   bool                         // under mu: there may be bytes of which nobody knows
	drops    bool                         // under mu: who writes here may not keep setuid and setgid
	reach    int64                        // under mu: how far space was taken behind the end
	touched  map[metadata.NodeID]struct{} // under mu: nodes written to since the last Sync
}

// Open opens the file ino. Every Open needs a Close. An inode that is gone is
// ESTALE: who has the name may look it up again.
func (c *Client) Open(ctx context.Context, ino metadata.Ino) (*File, error) {
	f := c.acquire(ino)
	a, err := c.opened(ctx, f)
	if err == nil {
		err = f.begin(ctx, a)
	}
	if err != nil {
		c.release(f)
		return nil, stale(err)
	}
	return f, nil
}

// opened tells f's home, if it has one, and returns f's attributes.
func (c *Client) opened(ctx context.Context, f *File) (metadata.Attr, error) {
	if f.ino.Sealed() {
		return c.Getattr(ctx, f.ino)
	}
	return f.attach(ctx)
}

func (c *Client) acquire(ino metadata.Ino) *File {
	if ino.Sealed() {
		return newFile(c, ino)
	}
	return c.files.acquire(c, ino)
}

func newFile(c *Client, ino metadata.Ino) *File {
	return &File{
		c: c, ino: ino, turn: make(chan struct{}, 1), syncTurn: make(chan struct{}, 1), app: appending{turn: make(chan struct{}, 1)},
		tail: newTail(), attr: metadata.Attr{Ino: ino},
	}
}

// begin fills what a new File does not know.
func (f *File) begin(ctx context.Context, a metadata.Attr) error {
	f.mu.Lock()
	known := f.order != nil
	if f.since == 0 {
		f.since = a.Ctime
	}
	f.mu.Unlock()
	if known {
		return nil
	}
	order, err := f.c.order(ctx, f.ino, a.Layout)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.order == nil {
		f.order = order
		if f.gen == 0 {
			f.attr = a
		}
	}
	return nil
}

// Ino is the file's inode.
func (f *File) Ino() metadata.Ino { return f.ino }

// Order is the nodes of the file's stripe, not to be changed.
func (f *File) Order() []metadata.NodeID {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.order
}

// Attr is the attributes as this node knows them, without asking anybody.
func (f *File) Attr() metadata.Attr {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known()
}

// Changed reports whether the file is another one, by its attributes a, than when
// it was opened here first.
func (f *File) Changed(a metadata.Attr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return a.Ctime != f.since
}

// known is Attr; f.mu is held.
func (f *File) known() metadata.Attr {
	a := f.attr
	a.Size = max(a.Size, f.end, f.app.Seen())
	return a
}

// ReadAt fills p from offset off. Fewer bytes mean the end of the file as this
// node knows it.
func (f *File) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	return f.ReadPipe(ctx, nil, p, off)
}

// ReadPipe is ReadAt, but that the bytes may be in the pipe to, all of them,
// rather than in p: to.N says.
func (f *File) ReadPipe(ctx context.Context, to *datapath.Pipe, p []byte, off int64) (int, error) {
	if err := f.arrive(ctx); err != nil {
		return 0, err
	}
	f.mu.Lock()
	a, order := f.known(), f.order
	f.mu.Unlock()
	return f.c.read(ctx, a, order, to, p, off)
}

// WriteAt writes p at offset off, through to the nodes that keep it. With an
// error, the first n bytes are written and the others may be.
func (f *File) WriteAt(ctx context.Context, p []byte, off int64) (n int, err error) {
	if f.ino.Sealed() {
		return 0, readOnly(f.ino)
	}
	if err := f.arrive(ctx); err != nil {
		return 0, err
	}
	n, tell, err := f.writeNow(ctx, p, off)
	if tell {
		// What fails here stays dirty, and Flush will say so.
		_, _ = f.publish(ctx)
	}
	return n, err
}

// writeNow writes p, the first n bytes of it with an error, and reports whether
// the home should hear of that.
func (f *File) writeNow(ctx context.Context, p []byte, off int64) (n int, tell bool, err error) {
	f.mu.Lock()
	a, order := f.attr, f.order
	f.mu.Unlock()
	n, nodes, err := f.c.write(ctx, a, order, p, off)
	return n, f.wrote(nodes, n, off, err), err
}

// wrote takes note of a write, and reports whether the home should hear of it.
func (f *File) wrote(nodes []metadata.NodeID, n int, off int64, err error) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = f.failed || err != nil
	f.touch(nodes)
	if n == 0 {
		return false
	}
	f.gen++
	now := f.c.cfg.Now()
	if !f.dirty {
		f.dirty = true
		f.told = now
	}
	f.end = max(f.end, off+int64(n))
	return now.Sub(f.told) > publishEvery
}

// Flush tells the file's home what was written, if it does not know.
func (f *File) Flush(ctx context.Context) error {
	if err := f.arrive(ctx); err != nil {
		return err
	}
	if err := f.settleAppends(ctx); err != nil {
		return err
	}
	if !f.isDirty() {
		return nil
	}
	_, err := f.publish(ctx)
	return err
}

// Sync makes what was written from this node durable, and flushes. Who wants to
// hear of what was lost before has a Writer.
func (f *File) Sync(ctx context.Context) error {
	if err := f.arrive(ctx); err != nil {
		return err
	}
	if err := f.harden(ctx); err != nil {
		return fmt.Errorf("sync of inode %v: %w", f.ino, err)
	}
	if err := f.Flush(ctx); err != nil {
		return err
	}
	return f.awaitVisible(ctx)
}

// harden has the nodes make durable what has arrived there.
func (f *File) harden(ctx context.Context) error {
	if err := take(ctx, f.syncTurn); err != nil {
		return err
	}
	defer func() { <-f.syncTurn }()
	f.mu.Lock()
	touched := f.touched
	f.touched = nil
	f.mu.Unlock()
	err := each(ctx, slices.Collect(maps.Keys(touched)), func(ctx context.Context, id metadata.NodeID) error {
		d, err := f.c.dataOf(id)
		if err == nil {
			err = d.Sync(ctx, f.ino)
		}
		return err
	})
	if err == nil {
		return nil
	}
	f.mu.Lock()
	f.touch(slices.Collect(maps.Keys(touched)))
	f.mu.Unlock()
	if saidOnce(err) {
		f.tail.mu.Lock()
		f.tail.lose(err, nil)
		f.tail.mu.Unlock()
	}
	return err
}

// saidOnce reports whether err is of a disk that has lost what it had taken, and
// will not say so again.
func saidOnce(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Close flushes and lets go of the file.
func (f *File) Close(ctx context.Context) error {
	err := f.Flush(ctx)
	f.c.release(f)
	return err
}

func (f *File) isDirty() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dirty
}

// refresh is Getattr for an open file.
func (f *File) refresh(ctx context.Context) (metadata.Attr, error) {
	if err := f.arrive(ctx); err != nil {
		return metadata.Attr{}, err
	}
	f.mu.Lock()
	dirty, untold, gen := f.dirty, f.app.Unsettled(), f.gen
	f.mu.Unlock()
	switch {
	case untold: // the answer has the attributes
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
	s, err := f.c.homeOf(f.ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	a, err := s.Getattr(ctx, f.ino)
	if err != nil {
		return metadata.Attr{}, f.missed(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gen == gen || a.Ctime >= f.attr.Ctime { // else it was overtaken
		f.attr = a
	}
	return f.known(), nil
}

// publish tells the home of all writes so far.
func (f *File) publish(ctx context.Context) (metadata.Attr, error) {
	s, err := f.c.homeOf(f.ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	return f.change(ctx, s, metadata.Change{})
}

// change applies ch at the home, together with what it does not know yet. A
// time of modification in ch is the last word.
func (f *File) change(ctx context.Context, s metadata.NodeStore, ch metadata.Change) (metadata.Attr, error) {
	if err := f.arrive(ctx); err != nil {
		return metadata.Attr{}, err
	}
	if err := f.take(ctx); err != nil {
		return metadata.Attr{}, err
	}
	defer f.give()
	if err := f.settleAppends(ctx); err != nil {
		return metadata.Attr{}, err
	}
	f.mu.Lock()
	gen, dirty, a := f.gen, f.dirty, f.known()
	if dirty {
		ch.Set |= metadata.GrowSize
		ch.Size = max(ch.Size, f.end)
		if f.drops {
			ch.Set |= metadata.DropSetIDs
		}
		if ch.Set&(metadata.SetMtime|metadata.MtimeNow) == 0 {
			ch.Set |= metadata.MtimeNow
		}
	}
	f.mu.Unlock()
	if ch.Set == 0 {
		return a, nil // somebody else has published while this one waited
	}
	a, err := s.Setattr(ctx, f.ino, ch)
	if err != nil {
		return metadata.Attr{}, f.missed(err)
	}
	if dirty {
		f.c.stats.published.Add(1)
	}
	f.settle(a, gen, nil)
	return f.Attr(), nil
}

// missed takes note if the home does not know the inode.
func (f *File) missed(err error) error {
	if errors.Is(err, syscall.ENOENT) {
		f.mu.Lock()
		f.dirty, f.failed = false, true
		f.mu.Unlock()
	}
	return stale(err)
}

// take waits for the turn to tell the home a size.
func (f *File) take(ctx context.Context) error {
	if err := take(ctx, f.turn); err != nil {
		return fmt.Errorf("inode %v: %w", f.ino, err)
	}
	return nil
}

func (f *File) give() { <-f.turn }

// widen makes a.Size as large as the writes that the home does not know of. It
// returns what settle wants; f may be nil.
func (f *File) widen(a *metadata.Attr) uint64 {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a.Size = max(a.Size, f.end, f.reach)
	return f.gen
}

// settle takes a, which the home answered to a change with all that was known
// here at gen. f may be nil.
func (f *File) settle(a metadata.Attr, gen uint64, err error) {
	if f == nil || err != nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attr = a
	f.told = f.c.cfg.Now()
	if f.gen == gen {
		f.dirty, f.end = false, 0
		f.gen++
	}
}
