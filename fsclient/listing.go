package fsclient

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/fsclient/route"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Listing lists a directory. An entry that exists all the time is listed once, even if the directory is split or merged
// meanwhile: a listing keeps the order in which it began.
//
//	began       now         order
//	one home    one home    by name, from the home
//	split       split       shard by shard, by name in each
//	one home    split       by name, merged from all shards
//
// If a shard cannot be reached, the others are listed; then the error is returned. A Listing may be used by only one
// caller at a time.
type Listing struct {
	c     *Client
	dir   metadata.Ino
	mode  listMode
	lost  error // error of a shard that was left out
	attrs bool  // return attributes with the entries where they cost no call
}

type listMode uint8

const (
	listNew     listMode = iota
	listByName           // it began with one home
	listByShard          // it began split
)

// List returns a Listing of dir.
func (c *Client) List(dir metadata.Ino) *Listing { return &Listing{c: c, dir: dir} }

// Read returns at most limit entries that follow the entry after, in the order of the listing; "" starts from the
// beginning. end reports that there are no more.
func (l *Listing) Read(ctx context.Context, after string, limit int) (es []metadata.Entry, end bool, err error) {
	if after == "" {
		l.mode, l.lost = listNew, nil
	}
	if l.dir.Sealed() {
		es, err = l.c.sealed.readDir(ctx, l.dir, after, limit)
		return es, len(es) < limit, err
	}
	es, end, err = l.from(ctx, after, limit)
	if err == nil && end && l.lost != nil {
		if len(es) == 0 {
			return nil, false, l.lost
		}
		end = false
	}
	return es, end, err
}

func (l *Listing) from(ctx context.Context, after string, limit int) (es []metadata.Entry, end bool, err error) {
	end, err = route.Do(ctx, l.c.nodes, func() (end bool, err error) {
		es, end, err = l.read(ctx, after, limit)
		return end, err
	})
	return es, end, err
}

func (l *Listing) read(ctx context.Context, after string, limit int) (es []metadata.Entry, end bool, err error) {
	e := l.c.nodes.Split(l.dir)
	switch {
	case e == 0:
		return l.readHome(ctx, after, limit)
	case l.mode == listByName:
		return l.readMerged(ctx, e, after, limit)
	}
	l.mode = listByShard
	return l.readShards(ctx, e, after, limit)
}

// readHome lists a directory that is not split. If it was split when the listing began, it has been empty since: all
// its entries are new.
func (l *Listing) readHome(ctx context.Context, after string, limit int) ([]metadata.Entry, bool, error) {
	if known, ok := l.c.leases.Listing(l.dir, after); ok && !l.attrs {
		n := min(len(known), limit)
		l.mode = listByName
		return known[:n:n], n < limit, nil
	}
	s, err := l.c.nodes.Home(l.dir)
	if err != nil {
		return nil, false, err
	}
	var es []metadata.Entry
	leaser, leases := s.(metadata.Leaser)
	switch {
	case l.attrs:
		es, err = s.ReadDir(ctx, l.dir, after, limit)
	case leases && l.dir.Home() != l.c.cfg.Self:
		es, err = l.readLeased(ctx, leaser, after, limit)
	default:
		es, err = s.ReadShard(ctx, l.dir, 0, after, limit)
	}
	if err != nil {
		return nil, false, err
	}
	l.mode = listByName
	return es, len(es) < limit, nil
}

// readLeased reads from another node, and keeps the leases that the answer grants: a listing is often followed by a
// lookup of each entry.
func (l *Listing) readLeased(ctx context.Context, s metadata.Leaser, after string, limit int) ([]metadata.Entry, error) {
	f := l.c.leases.Fetch()
	defer f.End()
	all, err := s.ReadDirLease(ctx, l.dir, after, limit, l.c.cfg.Self)
	if err != nil {
		return nil, err
	}
	f = f.Under(all.Lease)
	es := make([]metadata.Entry, len(all.Entries))
	for i := range all.Entries {
		e := &all.Entries[i]
		f.Entry(l.dir, e.Entry, e.EntryTerm)
		if e.Attr != nil {
			f.Attr(*e.Attr, e.AttrTerm)
		}
		es[i] = metadata.Entry{Name: e.Name, Ino: e.Ino, Mode: e.Mode}
	}
	f.Attr(all.Dir, all.Lease.Attr)
	f.Listing(l.dir, after, es, len(es) < limit, all.Lease.Entry)
	return es, nil
}

// readShards continues in the shard that has the entry after, and then in the next one.
func (l *Listing) readShards(ctx context.Context, e metadata.Epoch, after string, limit int) ([]metadata.Entry, bool, error) {
	sp, err := l.c.nodes.Shards(ctx, e)
	if err != nil {
		return nil, false, err
	}
	id, more := sp.Nodes[0], true
	if after != "" {
		id = sp.Home(l.dir, after)
	}
	var all []metadata.Entry
	for ; more && len(all) < limit; id, more = sp.Next(id) {
		es, err := l.readShard(ctx, id, e, after, limit-len(all))
		if err != nil {
			return nil, false, err
		}
		all, after = append(all, es...), ""
		if len(all) == limit {
			return all, false, nil
		}
	}
	return all, true, nil
}

// readShard reads from the shard of the node id. A shard that cannot be reached counts as empty, and its error is kept
// in l.lost.
func (l *Listing) readShard(ctx context.Context, id metadata.NodeID, e metadata.Epoch, after string, limit int) ([]metadata.Entry, error) {
	s, err := l.c.nodes.Meta(id)
	var es []metadata.Entry
	if err == nil {
		es, err = s.ReadShard(ctx, l.dir, e, after, limit)
	}
	if err == nil {
		return es, nil
	}
	err = fmt.Errorf("directory %v: shard of node %d: %w", l.dir, id, err)
	if rpc.Unanswered(err) && ctx.Err() == nil {
		l.lost = err
		return nil, nil
	}
	return nil, err
}

// readMerged lists a split directory by name.
func (l *Listing) readMerged(ctx context.Context, e metadata.Epoch, after string, limit int) (all []metadata.Entry, end bool, err error) {
	sp, err := l.c.nodes.Shards(ctx, e)
	for err == nil && !end && len(all) < limit {
		var es []metadata.Entry
		if es, end, err = l.merge(ctx, sp, after, limit-len(all)); len(es) > 0 {
			all, after = append(all, es...), es[len(es)-1].Name
		}
	}
	if err != nil {
		return nil, false, err
	}
	return all, end, nil
}

// merge returns at most limit entries that follow after: it asks each shard for some of them, and keeps those up to the
// name to which every shard has answered in full.
func (l *Listing) merge(ctx context.Context, sp cluster.ShardMap, after string, limit int) (all []metadata.Entry, end bool, err error) {
	share := limit/len(sp.Nodes) + mergeMore
	var g errgroup.Group
	var mu sync.Mutex
	until := "" // under mu, like all: the answers are complete up to this name; "" is no bound
	for _, id := range sp.Nodes {
		g.Go(func() error {
			part := Listing{c: l.c, dir: l.dir}
			es, err := part.readShard(ctx, id, sp.Epoch, after, share)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, es...)
			l.lost = cmp.Or(l.lost, part.lost)
			if len(es) == share && (until == "" || es[share-1].Name < until) {
				until = es[share-1].Name
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, false, err
	}
	if until != "" {
		all = slices.DeleteFunc(all, func(e metadata.Entry) bool { return e.Name > until })
	}
	slices.SortFunc(all, func(a, b metadata.Entry) int { return cmp.Compare(a.Name, b.Name) })
	if len(all) > limit {
		return all[:limit:limit], false, nil
	}
	return all, until == "", nil
}

// mergeMore is how many entries beyond an even share are requested from a shard.
const mergeMore = 16
