package home

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/leases"
)

// leased is a store that grants leases on the names and inodes in its answers, and recalls them from all other nodes
// before a change is acknowledged.
//
// Names and inodes change only through a method of leased. The context names the calling node (node.Asker); a context
// without one belongs to this node's own client.
type leased struct {
	*store
	self  metadata.NodeID
	table *leases.Table
	// forget has a node drop its cached answers for keys.
	forget func(ctx context.Context, id metadata.NodeID, keys []metadata.LeaseKey) error
	// fetch asks another home for the attributes of an inode.
	fetch func(ctx context.Context, ino metadata.Ino) (metadata.Attr, error)
	now   func() time.Time
	// copies has all homes keep copies of their records.
	copies func(ctx context.Context) error
}

var (
	_ metadata.NodeStore = (*leased)(nil)
	_ metadata.Leaser    = (*leased)(nil)
)

// slack is how much longer than a lease's term a kernel may keep an answer: it counts in clock ticks, from the arrival
// of the answer.
const slack = 100 * time.Millisecond

func (s *Server) newLeased(st *store) *leased {
	var granted time.Time // the end of leases that an earlier run may have granted
	if !st.Fresh() {
		granted = s.cfg.Now().Add(leases.Term + slack)
	}
	return &leased{
		store: st, self: s.node.Self(), table: leases.NewTable(s.cfg.Now, granted), now: s.cfg.Now, copies: s.cfg.Copies,
		forget: func(ctx context.Context, id metadata.NodeID, keys []metadata.LeaseKey) error {
			if s.near(id) {
				s.forgetHere(keys)
				return nil
			}
			return sendRevoke(ctx, s.node.To(id), keys)
		},
		fetch: func(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
			if err := ctx.Err(); err != nil {
				return metadata.Attr{}, err // an inline op must not wait
			}
			var r wire.AttrResp
			call := rpc.Call{Op: wire.OpGetattr, Body: &wire.InoReq{Ino: ino}, Reply: &r}
			err := s.node.To(ino.Home()).Do(ctx, &call)
			return r.Attr, err
		},
	}
}

// asker returns the node that made the call.
func (l *leased) asker(ctx context.Context) metadata.NodeID {
	if id, ok := node.Asker(ctx); ok {
		return id
	}
	return l.self
}

func attrKey(ino metadata.Ino) metadata.LeaseKey { return metadata.LeaseKey{Ino: ino} }

func entryKey(dir metadata.Ino, name string) metadata.LeaseKey {
	return metadata.LeaseKey{Ino: dir, Name: name}
}

// LookupLease implements metadata.Leaser. The entry always has its Attr. Attributes of an inode with another home are
// fetched from that home, and are not leased.
func (l *leased) LookupLease(ctx context.Context, dir metadata.Ino, name string, by metadata.NodeID) (metadata.Entry, metadata.Lease, error) {
	q := l.table.Ask(by)
	e, err := l.Lookup(ctx, dir, name)
	if err != nil {
		return e, metadata.Lease{}, err
	}
	term := l.grantEntry(dir, &e, q)
	if l.Resharding(dir) { // after the grant: see shard.Config.Leases
		term.Entry = 0
	}
	if e.Attr != nil {
		return e, term, nil
	}
	a, err := l.fetch(ctx, e.Ino)
	if errors.Is(err, syscall.ENOENT) {
		return e, metadata.Lease{}, nil // the caller handles a missing Attr
	}
	if err != nil {
		return e, metadata.Lease{}, err
	}
	e.Mode, e.Attr = a.Mode, &a
	return e, term, nil
}

// grantEntry grants leases on the entry e of dir, and on its attributes if e has them.
func (l *leased) grantEntry(dir metadata.Ino, e *metadata.Entry, q leases.Request) metadata.Lease {
	term := l.lease(q)
	term.Entry = l.table.Grant(entryKey(dir, e.Name), q)
	if e.Attr != nil {
		term.Attr = l.table.Grant(attrKey(e.Ino), q)
	}
	return term
}

// lease returns a lease that covers nothing yet.
func (l *leased) lease(q leases.Request) metadata.Lease {
	return metadata.Lease{Session: metadata.LeaseSession{Home: l.self, ID: q.Session}, Term: q.Term}
}

// RenewLease implements metadata.Leaser.
func (l *leased) RenewLease(_ context.Context, session uint64, by metadata.NodeID) (time.Duration, error) {
	return l.table.Renew(by, session), nil
}

// endLeases recalls all leases on a directory and its entries. No lease on them is granted during resharding.
func (l *leased) endLeases(ctx context.Context, dir metadata.Ino) {
	l.revokeFor(ctx, rpc.NoNode, time.Time{}, l.table.Of(dir)...)
}

// ReadDirLease implements metadata.Leaser.
func (l *leased) ReadDirLease(ctx context.Context, dir metadata.Ino, after string, limit int, by metadata.NodeID) (metadata.LeasedListing, error) {
	q := l.table.Ask(by)
	a, err := l.Getattr(ctx, dir)
	if err != nil {
		return metadata.LeasedListing{}, err
	}
	es, err := l.ReadDir(ctx, dir, after, limit)
	if err != nil {
		return metadata.LeasedListing{}, err
	}
	all := metadata.LeasedListing{Dir: a, Lease: l.lease(q), Entries: make([]metadata.LeasedEntry, len(es))}
	for i, e := range es {
		term := l.grantEntry(dir, &e, q)
		all.Entries[i] = metadata.LeasedEntry{Entry: e, EntryTerm: term.Entry, AttrTerm: term.Attr}
	}
	all.Lease.Attr = l.table.Grant(attrKey(dir), q)
	all.Lease.Entry = all.Lease.Attr
	if l.Resharding(dir) { // as in LookupLease
		all.Lease.Entry = 0
		for i := range all.Entries {
			all.Entries[i].EntryTerm = 0
		}
	}
	return all, nil
}

// GetattrLease implements metadata.Leaser.
func (l *leased) GetattrLease(ctx context.Context, ino metadata.Ino, by metadata.NodeID) (metadata.Attr, metadata.Lease, error) {
	q := l.table.Ask(by)
	a, err := l.Getattr(ctx, ino)
	if err != nil {
		return a, metadata.Lease{}, err
	}
	term := l.lease(q)
	term.Attr = l.table.Grant(attrKey(ino), q)
	return a, term, nil
}

// revoke recalls the leases on keys after the asker has changed them by a call that began at began. It returns when no
// other node holds an old answer any more, nor the asker one that it has requested since began.
func (l *leased) revoke(ctx context.Context, began time.Time, keys ...metadata.LeaseKey) {
	l.revokeFor(ctx, l.asker(ctx), began, keys...)
}

// revokeFor is revoke for a change by node by.
func (l *leased) revokeFor(ctx context.Context, by metadata.NodeID, began time.Time, keys ...metadata.LeaseKey) {
	holders, after := l.table.Change(by, began, keys...)
	ctx = context.WithoutCancel(ctx) // the change has happened, so a cancelled call does not stop the recall
	if len(holders) > 0 {
		var g errgroup.Group
		for h, keys := range holders {
			g.Go(func() error { l.revokeFrom(ctx, h, keys); return nil })
		}
		_ = g.Wait() // no function fails
	}
	if d := after.Sub(l.now()); !after.IsZero() && d > 0 {
		<-time.After(d)
	}
}

// revokeFrom recalls one holder's leases, or waits for their expiry if the holder does not answer.
func (l *leased) revokeFrom(ctx context.Context, h leases.Holder, keys []metadata.LeaseKey) {
	left := h.Until.Sub(l.now()) + slack
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if err := l.forget(ctx, h.Node, keys); err != nil {
		<-ctx.Done()
	}
	l.table.Recalled(h, keys)
}

// sendRevoke has a holder drop its cached answers for keys.
func sendRevoke(ctx context.Context, c rpc.Caller, keys []metadata.LeaseKey) error {
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

func (s *Server) forgetHere(keys []metadata.LeaseKey) {
	if f := s.forget.Load(); f != nil {
		(*f)(keys)
	}
}

func (s *Server) leaseHandlers() node.Handlers {
	return node.Handlers{
		wire.OpLookupLease: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.DirName) (node.Appender, error) {
			e, t, err := s.LookupLease(ctx, q.Dir, q.Name, r.Peer)
			if err != nil {
				return nil, err
			}
			return &wire.LeasedEntryResp{Entry: e, Lease: t}, nil
		}),
		wire.OpGetattrLease: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.InoReq) (node.Appender, error) {
			a, t, err := s.GetattrLease(ctx, q.Ino, r.Peer)
			if err != nil {
				return nil, err
			}
			return &wire.LeasedAttrResp{Attr: a, Lease: t}, nil
		}),
		wire.OpReadDirLease: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.ReadDirReq) (node.Appender, error) {
			if err := tooMany(q.Limit); err != nil {
				return nil, err
			}
			all, err := s.ReadDirLease(ctx, q.Dir, q.After, int(q.Limit), r.Peer)
			return &wire.LeasedListingResp{LeasedListing: all}, err
		}),
		wire.OpRenewLease: node.HandleFrom(func(ctx context.Context, r *rpc.Request, q *wire.RenewLeaseReq) (node.Appender, error) {
			term, err := s.RenewLease(ctx, q.Session, r.Peer)
			return &wire.RenewLeaseResp{Term: term}, err
		}),
		wire.OpRevoke: node.Handle(func(_ context.Context, q *wire.RevokeReq) (node.Appender, error) {
			if s.forget.Load() == nil { // the kernel may hold leased answers of an earlier daemon
				return nil, fmt.Errorf("the mount is not served yet: %w", syscall.EAGAIN)
			}
			s.forgetHere(q.Keys)
			return nil, nil
		}),
	}
}

func isDir(mode uint32) bool { return mode&syscall.S_IFMT == syscall.S_IFDIR }
