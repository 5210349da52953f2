package fsclient

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

const (
	// closesWait is how long closes are collected before their homes are told.
	closesWait = 50 * time.Millisecond
	// againAfter is when a home that could not be told is tried again.
	againAfter = time.Second
	// recalled is the most files in one answer to a Recall.
	recalled = 4096
)

var _ metadata.Recaller = (*Client)(nil)

func (c *Client) holder() metadata.Holder { return metadata.Holder{Node: c.cfg.Self, Run: c.cfg.Run} }

// opensOf is what a home does for those who have its files open.
func opensOf(s metadata.NodeStore) (metadata.Opens, error) {
	o, ok := s.(metadata.Opens)
	if !ok {
		return nil, fmt.Errorf("a home that does not know what is open: %w", syscall.EOPNOTSUPP)
	}
	return o, nil
}

// attach tells the home that the file is open here, and returns its attributes.
// A home that knows is only asked for them.
func (f *File) attach(ctx context.Context) (metadata.Attr, error) {
	f.mu.Lock()
	attached, gen := f.attached, f.gen
	f.mu.Unlock()
	if attached {
		return f.refresh(ctx)
	}
	s, err := f.c.homeOf(f.ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	o, err := opensOf(s)
	if err != nil {
		return metadata.Attr{}, err
	}
	a, err := o.Open(ctx, f.c.holder(), f.ino, f.ticket)
	if err != nil {
		return metadata.Attr{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attached = true
	if f.gen == gen {
		f.attr = a
	}
	return f.known(), nil
}

// release lets go of f; with the last use of it on this node its home is told,
// later, with others. Nobody waits for that.
func (c *Client) release(f *File) {
	if f.ino.Sealed() {
		return
	}
	f.mu.Lock()
	unsure := f.failed || f.dirty
	f.mu.Unlock()
	if !c.files.release(f, unsure) {
		return
	}
	c.locks.closed(f.ino)
	if f.ino.Home() == c.cfg.Self {
		c.tellClosed(c.ctx, c.cfg.Self)
	}
	if c.files.pending() {
		nudge(c.kick)
	}
}

// closing tells the homes what was closed, until the client is closed. Each is told by
// itself, by one call at a time: one that hangs keeps nobody else waiting.
func (c *Client) closing() {
	c.linger(c.kick, closesWait, c.files.pending, func() time.Duration {
		for home, files := range c.files.takeAllClosed() {
			c.wg.Go(func() {
				if !c.tellOf(c.ctx, home, files) {
					retry.Pause(c.ctx, againAfter)
				}
				c.files.toldOnce(home)
				nudge(c.kick) // of what was closed meanwhile
			})
		}
		return closesWait
	})
}

// tellClosed tells a home what was closed.
func (c *Client) tellClosed(ctx context.Context, home metadata.NodeID) {
	if files := c.files.takeClosed(home); len(files) > 0 {
		c.tellOf(ctx, home, files)
	}
}

// tellOf tells a home of closes; false if it could not be told. One that is given up
// knows by that.
func (c *Client) tellOf(ctx context.Context, home metadata.NodeID, files []metadata.Opened) bool {
	err := c.tellHome(ctx, home, files)
	n, _ := c.cfg.View().Map.Node(home)
	if err == nil || n.State == cluster.Down {
		return true
	}
	c.cfg.Log.WithError(err).Debug("a home was not told what is closed")
	c.files.untold(files)
	return false
}

func (c *Client) tellHome(ctx context.Context, home metadata.NodeID, files []metadata.Opened) error {
	s, err := c.metaOf(home)
	if err != nil {
		return err
	}
	o, err := opensOf(s)
	if err != nil {
		return err
	}
	return o.Closed(ctx, c.holder(), files)
}

// Recall is metadata.Recaller.
func (c *Client) Recall(q metadata.Recall) metadata.Recalled {
	t := &c.files
	t.mu.Lock()
	defer t.mu.Unlock()
	r := metadata.Recalled{Run: c.cfg.Run, Floor: t.floor()}
	add := func(ino metadata.Ino) {
		if f := t.open[ino]; f != nil {
			f.mu.Lock()
			flight, placed := f.app.Report(q.Run)
			r.Files = append(r.Files, metadata.Opened{
				Ino: ino, Ticket: f.ticket, Unsure: f.unsure, Flight: flight, Placed: placed, Locks: c.locks.of(ino),
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
	if len(r.Files) > recalled {
		r.Files, r.More = r.Files[:recalled], true
	}
	return r
}

// CreateOpen makes a regular file and opens it, which is one call. With EEXIST
// the Attr is what Create says of what is there.
func (c *Client) CreateOpen(ctx context.Context, dir metadata.Ino, name string, n metadata.New) (*File, metadata.Attr, error) {
	if dir.Sealed() {
		return nil, metadata.Attr{}, readOnly(dir)
	}
	c.layOut(&n)
	t := c.files.create()
	a, err := routed(ctx, c, func() (metadata.Attr, error) {
		s, err := c.at(ctx, dir, name)
		if err != nil {
			return metadata.Attr{}, err
		}
		o, err := opensOf(s)
		if err != nil {
			return metadata.Attr{}, err
		}
		return o.CreateOpen(ctx, c.holder(), t, dir, name, n)
	})
	if err != nil {
		c.files.notCreated(t)
		return nil, a, err
	}
	c.entered(dir, &a)
	f := c.files.created(c, a.Ino, t)
	f.mu.Lock()
	f.attached = true
	f.mu.Unlock()
	if err := f.begin(ctx, a); err != nil {
		c.release(f)
		return nil, a, err
	}
	return f, a, nil
}
