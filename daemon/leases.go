package daemon

import (
	"context"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// leasing is a home that promises its answers about directories to who asks,
// and keeps the promises: whoever holds one is told of a change by another node
// before the change is acknowledged.
//
// What changes a directory comes in by one of its methods. Who asked for it is
// in the context; nobody there means this node's own client.
type leasing struct {
	*home
	self  metadata.NodeID
	table *leases.Table
	// tell has a node forget what keys name.
	tell func(ctx context.Context, node metadata.NodeID, keys []metadata.LeaseKey) error
	// fetch asks another home for the attributes of an inode.
	fetch func(ctx context.Context, ino metadata.Ino) (metadata.Attr, error)
	now   func() time.Time
}

var (
	_ metadata.NodeStore = (*leasing)(nil)
	_ metadata.Leaser    = (*leasing)(nil)
)

// slack is how much longer than its term a kernel may keep something: it counts
// in clock ticks, from when the answer reaches it.
const slack = 100 * time.Millisecond

func (l *leasing) asker(ctx context.Context) metadata.NodeID {
	if id, ok := node.Asker(ctx); ok {
		return id
	}
	return l.self
}

func attrKey(dir metadata.Ino) metadata.LeaseKey { return metadata.LeaseKey{Ino: dir} }

func entryKey(dir metadata.Ino, name string) metadata.LeaseKey {
	return metadata.LeaseKey{Ino: dir, Name: name}
}

func isDir(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }

// LookupLease is metadata.Leaser. The entry always has its Attr; if its inode
// is homed elsewhere, they are asked for there, and are not leased.
func (l *leasing) LookupLease(ctx context.Context, dir metadata.Ino, name string, by metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	e, err := l.Lookup(ctx, dir, name)
	if err != nil {
		return e, metadata.Lease{}, err
	}
	var term metadata.Lease
	if isDir(e.Mode) { // now that it is known for one, promise, and look again
		term.Entry = l.table.Grant(entryKey(dir, name), by)
		if e.Attr != nil {
			term.Attr = l.table.Grant(attrKey(e.Ino), by)
		}
		was := e.Ino
		if e, err = l.Lookup(ctx, dir, name); err != nil {
			return e, metadata.Lease{}, err
		}
		if e.Ino != was {
			term = metadata.Lease{}
		}
		if l.Resharding(dir) { // asked after the promise: see shard.Config.Leases
			term.Entry = 0
		}
	}
	if e.Attr != nil {
		return e, term, nil
	}
	a, err := l.fetch(ctx, e.Ino)
	if errors.Is(err, syscall.ENOENT) {
		return e, metadata.Lease{}, nil // the caller sees to it
	}
	if err != nil {
		return e, metadata.Lease{}, err
	}
	e.Mode, e.Attr = a.Mode, &a
	return e, term, nil
}

// GetattrLease is metadata.Leaser.
func (l *leasing) GetattrLease(ctx context.Context, ino metadata.Ino, by metadata.NodeID) (metadata.Attr, metadata.Lease, error) {
	a, err := l.Getattr(ctx, ino)
	if err != nil || !isDir(a.Mode) {
		return a, metadata.Lease{}, err
	}
	term := metadata.Lease{Attr: l.table.Grant(attrKey(ino), by)}
	a, err = l.Getattr(ctx, ino)
	return a, term, err
}

// changed keeps the promises about keys, after the asker has changed what they
// name. It returns when nobody holds the old answers any more.
func (l *leasing) changed(ctx context.Context, keys ...metadata.LeaseKey) {
	l.changedBy(ctx, l.asker(ctx), keys...)
}

func (l *leasing) changedBy(ctx context.Context, by metadata.NodeID, keys ...metadata.LeaseKey) {
	tell, after := l.table.Change(by, keys...)
	ctx = context.WithoutCancel(ctx) // it has happened
	if len(tell) > 0 {
		var g errgroup.Group
		for h, keys := range tell {
			g.Go(func() error { l.revoke(ctx, h, keys); return nil })
		}
		_ = g.Wait() // none returns an error
	}
	if d := after.Sub(l.now()); !after.IsZero() && d > 0 {
		<-time.After(d)
	}
}

// revoke tells one holder, or waits until his promise is over.
func (l *leasing) revoke(ctx context.Context, h leases.Holder, keys []metadata.LeaseKey) {
	left := h.Until.Sub(l.now()) + slack
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if err := l.tell(ctx, h.Node, keys); err != nil {
		<-ctx.Done()
	}
}

// RevokeFunc forgets on this node what it must not keep any longer.
type RevokeFunc func([]metadata.LeaseKey)

// SetRevoke gives the daemon its way to what this node's client and mount keep.
func (d *Daemon) SetRevoke(f RevokeFunc) { d.forget.Store(&f) }

func (d *Daemon) openLeases(after time.Time) *leasing {
	return &leasing{
		home: d.meta, self: d.job.Self, table: leases.NewTable(time.Now, after), now: time.Now,
		tell: func(ctx context.Context, node metadata.NodeID, keys []metadata.LeaseKey) error {
			if node == d.job.Self {
				d.forgetHere(keys)
				return nil
			}
			return d.revoke(ctx, d.peers.To(node), keys)
		},
		fetch: func(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
			if err := ctx.Err(); err != nil {
				return metadata.Attr{}, err // an inline op, which must not wait
			}
			var r wire.AttrResp
			call := rpc.Call{Op: wire.OpGetattr, Body: &wire.InoReq{Ino: ino}, Reply: &r}
			err := d.peers.To(ino.Home()).Do(ctx, &call)
			return r.Attr, err
		},
	}
}

// revoke has a holder forget keys.
func (d *Daemon) revoke(ctx context.Context, c rpc.Caller, keys []metadata.LeaseKey) error {
	for len(keys) > 0 {
		n := min(len(keys), wire.MaxRevoked)
		call := rpc.Call{Op: wire.OpRevoke, Body: &wire.RevokeReq{Keys: keys[:n]}}
		if err := c.Do(ctx, &call); err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

func (d *Daemon) forgetHere(keys []metadata.LeaseKey) {
	if f := d.forget.Load(); f != nil {
		(*f)(keys)
	}
}

func (d *Daemon) leaseHandlers() map[wire.Op]rpc.Handler {
	m := d.leased
	return map[wire.Op]rpc.Handler{
		wire.OpLookupLease: func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
			var q wire.DirName
			if err := wire.Parse(r.Body, &q); err != nil {
				return err
			}
			e, t, err := m.LookupLease(ctx, q.Dir, q.Name, r.Peer)
			if err == nil {
				resp.Body = &wire.LeasedEntryResp{Entry: e, Lease: t}
			}
			return err
		},
		wire.OpGetattrLease: func(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
			var q wire.InoReq
			if err := wire.Parse(r.Body, &q); err != nil {
				return err
			}
			a, t, err := m.GetattrLease(ctx, q.Ino, r.Peer)
			if err == nil {
				resp.Body = &wire.LeasedAttrResp{Attr: a, Lease: t}
			}
			return err
		},
		wire.OpRevoke: node.Handle(func(_ context.Context, q *wire.RevokeReq) (node.Appender, error) {
			d.forgetHere(q.Keys)
			return nil, nil
		}),
	}
}
