package fsclient

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// Names and attributes are cached for as long as their homes have leased them.

// Revoke drops cached attributes and entries, here and in the kernel, because another node
// is changing them.
func (c *Client) Revoke(keys []metadata.LeaseKey) {
	inos := c.leases.Recalled(keys...)
	c.closeIdle(inos)
	if f := c.onRevoke.Load(); f != nil {
		f.recalled(inos)
	}
}

// forgetting holds the callbacks for inodes whose attributes must not be cached any longer.
type forgetting struct{ recalled, changed func(inos []metadata.Ino) }

// OnRevoke calls recalled with the inodes whose attributes must not be cached any longer, and changed with those that
// this node has changed, before the change returns. Neither may wait for an operation of this client.
func (c *Client) OnRevoke(recalled, changed func(inos []metadata.Ino)) {
	c.onRevoke.Store(&forgetting{recalled, changed})
}

// changedHere drops the cached answers about keys after a call that should change them: the change succeeded, may still
// take effect, or failed with an error that shows the answers to be out of date. err is the call's error. The home
// recalls leases only from other nodes.
func (c *Client) changedHere(err error, keys ...metadata.LeaseKey) {
	forget := c.leases.Revoke
	if mayHappen(err) {
		forget = c.leases.Doubt
	}
	inos := forget(keys...)
	c.closeIdle(inos)
	if f := c.onRevoke.Load(); f != nil {
		f.changed(inos)
	}
}

// changing calls do, which changes the attributes of a file or directory at its home and returns them. If they are
// leased and no other node changes them meanwhile, the lease continues: the next lookup of the file costs no call.
func changing(c *Client, ino metadata.Ino, do func() (metadata.Attr, error)) error {
	change := c.leases.Change(ino)
	defer change.End()
	a, err := do()
	a.Before = 0 // the lease is on the attributes that Getattr returns
	if err != nil || !change.Changed(a) {
		c.changedHere(err, attrKey(ino))
	}
	return err
}

// mayHappen reports whether a change whose call failed with err may still take effect.
func mayHappen(err error) bool {
	return err != nil && (rpc.Unanswered(err) || errors.Is(err, syscall.EINTR) || errors.Is(err, syscall.EIO) ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// LookupLeased is Lookup that also returns how long the attributes are leased: 0 unless they had been requested before.
func (c *Client) LookupLeased(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, time.Duration, error) {
	if dir.Sealed() {
		e, err := c.sealed.lookup(ctx, dir, name)
		return e, 0, err
	}
	e, ok := c.leases.Entry(dir, name)
	if !ok && c.leases.Absent(dir, name) {
		return metadata.Entry{}, 0, fmt.Errorf("entry %q of %v: %w", name, dir, syscall.ENOENT)
	}
	if !ok {
		e, err := c.lookupNow(ctx, dir, name)
		listIfAsked(ctx, c, dir, err)
		return e, 0, err
	}
	a, left, err := c.GetattrLeased(ctx, e.Ino)
	if errors.Is(err, syscall.ENOENT) || err == nil && a.Nlink == 0 {
		c.leases.Revoke(entryKey(dir, name))
		e, err := c.lookupNow(ctx, dir, name)
		return e, 0, err
	}
	if err != nil {
		return metadata.Entry{}, 0, err
	}
	e.Mode, e.Attr = a.Mode, &a
	return e, left, nil
}

// listIfAsked lists the beginning of dir, after its home was asked for a name with the result err, if that will
// probably save calls.
func listIfAsked(ctx context.Context, c *Client, dir metadata.Ino, err error) {
	missing := errors.Is(err, syscall.ENOENT)
	far := dir.Home() != c.cfg.Self && c.nodes.Split(dir) == 0 // only such a listing grants leases
	if err != nil && !missing || !far {
		return
	}
	l, after := c.List(dir), ""
	for left := c.leases.Asked(dir, !missing); left > 0; { // only for the leases
		es, end, err := l.Read(ctx, after, min(left, maxListed))
		if err != nil || end || len(es) == 0 {
			return
		}
		left, after = left-len(es), es[len(es)-1].Name
	}
}

// maxListed bounds the entries listed by one call.
const maxListed = 1024

// lookupNow asks the node that keeps the entry. It asks again if the entry's inode was removed before its attributes
// were read: the name was given to another inode, or removed.
func (c *Client) lookupNow(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	for was := metadata.Ino(0); ; {
		e, err := c.lookupOnce(ctx, dir, name)
		switch {
		case err != nil:
			return metadata.Entry{}, err
		case e.Attr != nil:
			return e, nil
		case e.Ino == was:
			return metadata.Entry{}, fmt.Errorf("entry %q of %v, inode %v: %w", name, dir, e.Ino, syscall.ENOENT)
		}
		was = e.Ino
	}
}

// lookupOnce asks once. An entry whose inode was removed has no Attr.
func (c *Client) lookupOnce(ctx context.Context, dir metadata.Ino, name string) (metadata.Entry, error) {
	f := c.leases.Fetch()
	defer f.End()
	var term metadata.Lease
	e, err := at(ctx, c, dir, name, func(s metadata.NodeStore) (e metadata.Entry, err error) {
		e, term, err = lookupLease(ctx, s, dir, name, c.cfg.Self)
		return e, err
	})
	if err != nil {
		return metadata.Entry{}, err
	}
	f = f.Under(term)
	f.Entry(dir, e, term.Entry)
	if e.Attr != nil {
		*e.Attr = f.Attr(*e.Attr, term.Attr)
	}
	if e.Attr != nil && e.Attr.Nlink > 0 && c.files.get(e.Ino) == nil {
		return e, nil
	}
	a, err := c.Getattr(ctx, e.Ino)
	switch {
	case errors.Is(err, syscall.ENOENT), err == nil && a.Nlink == 0:
		e.Attr = nil
		return e, nil
	case err != nil:
		return metadata.Entry{}, err
	}
	e.Mode, e.Attr = a.Mode, &a
	return e, nil
}

func lookupLease(ctx context.Context, s metadata.NodeStore, dir metadata.Ino, name string, by metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	if l, ok := s.(metadata.Leaser); ok {
		return l.LookupLease(ctx, dir, name, by)
	}
	e, err := s.Lookup(ctx, dir, name)
	return e, metadata.Lease{}, err
}

// GetattrLeased is Getattr that also returns how long the answer is leased.
func (c *Client) GetattrLeased(ctx context.Context, ino metadata.Ino) (metadata.Attr, time.Duration, error) {
	if ino.Sealed() {
		a, err := c.sealed.getattr(ctx, ino)
		return a, 0, err
	}
	if f := c.files.get(ino); f != nil { // its home may not know of this node's writes
		a, err := f.refresh(ctx)
		if err != nil {
			return a, 0, err
		}
		leased, left := c.leases.Attr(ino)
		if a.Ctime != leased.Ctime || a.Size != leased.Size {
			left = 0
		}
		return a, left, nil
	}
	if a, left := c.leases.Attr(ino); left > 0 {
		return a, left, nil
	}
	a, err := c.getattrLive(ctx, ino)
	return a, 0, err
}

// Removed returns the last attributes of a directory that was removed.
func (c *Client) Removed(ino metadata.Ino) (metadata.Attr, bool) { return c.leases.Removed(ino) }

// getattrLive asks the home of ino for its attributes.
func (c *Client) getattrLive(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	s, err := c.nodes.Home(ino)
	if err != nil {
		return metadata.Attr{}, err
	}
	l, ok := s.(metadata.Leaser)
	if !ok {
		return s.Getattr(ctx, ino)
	}
	f := c.leases.Fetch()
	defer f.End()
	a, term, err := l.GetattrLease(ctx, ino, c.cfg.Self)
	if err == nil {
		a = f.Under(term).Attr(a, term.Attr)
	}
	return a, err
}

// renewEvery is the interval at which this node looks for lease sessions to renew.
const renewEvery = leases.Term / 4

// renewLeases renews the lease sessions that are in use, until the client is closed.
func (c *Client) renewLeases() {
	t := time.NewTicker(renewEvery)
	defer t.Stop()
	for i := 0; ; i++ {
		select {
		case <-c.ctx.Done():
			return
		case <-t.C:
		}
		if i%int(leases.Term/renewEvery) == 0 { // less often, because it looks at each idle file
			c.closeExpired(c.cfg.Now())
		}
		for _, session := range c.leases.Due() {
			c.wg.Go(func() { c.renewLease(session) })
		}
	}
}

func (c *Client) renewLease(session metadata.LeaseSession) {
	ctx, cancel := context.WithTimeout(c.ctx, leases.Term)
	defer cancel()
	asked, term := c.cfg.Now(), time.Duration(-1)
	if s, err := c.nodes.Background(session.Home); err == nil {
		if l, ok := s.(metadata.Leaser); ok {
			if got, err := l.RenewLease(ctx, session.ID, c.cfg.Self); err == nil {
				term = got
			}
		}
	}
	c.leases.Renewed(session, asked, term)
}

func attrKey(ino metadata.Ino) metadata.LeaseKey { return metadata.LeaseKey{Ino: ino} }

func entryKey(dir metadata.Ino, name string) metadata.LeaseKey {
	return metadata.LeaseKey{Ino: dir, Name: name}
}

// entryChanged records that this node has made or removed an entry of dir that names no directory. at is the inode,
// changed by the same transaction: if both have one home, its st_ctime is also that of dir. at may be nil.
func (c *Client) entryChanged(dir metadata.Ino, at *metadata.Attr) {
	if at == nil || at.Ino.Home() != dir.Home() {
		c.changedHere(nil, attrKey(dir))
		return
	}
	c.leases.Touch(dir, at.Ctime)
	if f := c.onRevoke.Load(); f != nil {
		f.changed([]metadata.Ino{dir})
	}
}

func isDir(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }
