package fsclient

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Listing is a directory that is being listed. An entry that is there all the
// time is listed once, also if the directory becomes wide meanwhile: a listing
// goes on in the order in which it began.
//
//	began       now         order
//	at home     at home     by name, at the home
//	wide        wide        node by node, on each by name
//	at home     wide        by name, merged from all nodes
//
// A wide directory of which a section cannot be reached is listed as far as it
// can be; then the error comes. One Listing is used by one caller at a time.
type Listing struct {
	c     *Client
	dir   metadata.Ino
	mode  listMode
	lost  error // of a section that was left out
	attrs bool  // are wanted with the entries, where they are at hand
}

type listMode uint8

const (
	listNew    listMode = iota
	listByName          // it began at the home
	listByNode          // it began wide
)

// List begins a listing of dir.
func (c *Client) List(dir metadata.Ino) *Listing { return &Listing{c: c, dir: dir} }

// Read returns at most limit entries that follow the entry after in the order
// of the listing; "" begins again. end says that there are no more.
func (l *Listing) Read(ctx context.Context, after string, limit int) (es []metadata.Entry, end bool, err error) {
	if after == "" {
		l.mode, l.lost = listNew, nil
	}
	if l.dir.Sealed() {
		es, err = l.c.readSealed(ctx, l.dir, after, limit)
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
	end, err = routed(ctx, l.c, func() (end bool, err error) {
		es, end, err = l.read(ctx, after, limit)
		return end, err
	})
	return es, end, err
}

func (l *Listing) read(ctx context.Context, after string, limit int) (es []metadata.Entry, end bool, err error) {
	e := l.c.wide.Epoch(l.dir)
	switch {
	case e == 0:
		return l.readHome(ctx, after, limit)
	case l.mode == listByName:
		return l.readMerged(ctx, e, after, limit)
	}
	l.mode = listByNode
	return l.readNodes(ctx, e, after, limit)
}

// readHome lists a directory that is not wide. If it was when this began, it
// was empty since: whatever is in it is new.
func (l *Listing) readHome(ctx context.Context, after string, limit int) ([]metadata.Entry, bool, error) {
	s, err := l.c.homeOf(l.dir)
	if err != nil {
		return nil, false, err
	}
	var es []metadata.Entry
	if l.attrs {
		es, err = s.ReadDir(ctx, l.dir, after, limit)
	} else {
		es, err = s.ReadShard(ctx, l.dir, 0, after, limit)
	}
	if err != nil {
		return nil, false, err
	}
	l.mode = listByName
	return es, len(es) < limit, nil
}

// spread is where the entries of a directory are that was spread in the epoch e.
func (c *Client) spread(ctx context.Context, e metadata.Epoch) (cluster.ShardMap, error) {
	m := c.cfg.View().Map
	if e > m.Epoch {
		var err error
		if m, err = c.awaitEpoch(ctx, e); err != nil {
			return cluster.ShardMap{}, err
		}
	}
	return m.ShardMap(e), nil
}

// readNodes goes on in the section that after is in, and then in the next ones.
func (l *Listing) readNodes(ctx context.Context, e metadata.Epoch, after string, limit int) ([]metadata.Entry, bool, error) {
	sp, err := l.c.spread(ctx, e)
	if err != nil {
		return nil, false, err
	}
	id, more := sp.Nodes[0], true
	if after != "" {
		id = sp.Home(l.dir, after)
	}
	var all []metadata.Entry
	for ; more && len(all) < limit; id, more = sp.Next(id) {
		es, err := l.section(ctx, id, e, after, limit-len(all))
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

// section reads from the section of the node id. One that cannot be reached is
// empty, and kept in mind.
func (l *Listing) section(ctx context.Context, id metadata.NodeID, e metadata.Epoch, after string, limit int) ([]metadata.Entry, error) {
	s, err := l.c.metaOf(id)
	var es []metadata.Entry
	if err == nil {
		es, err = s.ReadShard(ctx, l.dir, e, after, limit)
	}
	if err == nil {
		return es, nil
	}
	err = fmt.Errorf("directory %v: section of node %d: %w", l.dir, id, err)
	if rpc.Unanswered(err) && ctx.Err() == nil {
		l.lost = err
		return nil, nil
	}
	return nil, err
}

// readMerged lists by name what began so.
func (l *Listing) readMerged(ctx context.Context, e metadata.Epoch, after string, limit int) (all []metadata.Entry, end bool, err error) {
	sp, err := l.c.spread(ctx, e)
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

// merge returns some entries that follow after, at most limit: it asks each
// node for its share of them, and takes what is sure to be next.
func (l *Listing) merge(ctx context.Context, sp cluster.ShardMap, after string, limit int) (all []metadata.Entry, end bool, err error) {
	share := limit/len(sp.Nodes) + mergeMore
	var g errgroup.Group
	var mu sync.Mutex
	until := "" // under mu, as all: no node has left anything out before; "" is no bound
	for _, id := range sp.Nodes {
		g.Go(func() error {
			part := Listing{c: l.c, dir: l.dir}
			es, err := part.section(ctx, id, sp.Epoch, after, share)
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

// mergeMore is how many entries more than its even share a node is asked for.
const mergeMore = 16
