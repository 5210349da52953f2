package daemon

import (
	"cmp"
	"context"
	"slices"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
)

// UnreadableFile is a file of a dataset that has stayed in the source, and that a node
// could not have from there as it was, when it was last asked for.
type UnreadableFile struct {
	Host string `json:"host"`
	stagein.Unreadable
}

// mostTold bounds what is said of a file, in bytes.
const mostTold = 1 << 10

// unreadable is what this node says of a fill.
func (d *Daemon) unreadable(f *stagein.Fill) (all []stagein.Unreadable, more int64) {
	all, more = f.Unreadable()
	for i := range all {
		all[i].Error = all[i].Error[:min(len(all[i].Error), mostTold)]
	}
	return all, more
}

// unreadableAs is what the nodes have reported to this one, which leads.
func (l *leadership) unreadableAs(d *Daemon, id metadata.DatasetID) (all []UnreadableFile, more int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := d.View().Map
	for to, r := range l.reports {
		if n, _ := m.Node(to); !node.Serving(n) {
			continue
		}
		x := r.Filled[id]
		for _, u := range x.Unreadable {
			all = append(all, UnreadableFile{d.job.Hosts[to], u})
		}
		more += x.More
	}
	slices.SortFunc(all, func(a, b UnreadableFile) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Host, b.Host)) })
	return all, more
}

// unreadableOf is what the leader knows of a dataset, but of this node what is so now.
func (d *Daemon) unreadableOf(ctx context.Context, s *DatasetStatus) {
	var r statusReply
	if d.Call(ctx, d.leaderID(), wire.OpStatus, statusReq{Dataset: s.ID, Unreadable: true}, &r) != nil {
		r = statusReply{} // nobody leads just now
	}
	self := d.job.Hosts[d.job.Self]
	s.Unreadable = slices.DeleteFunc(r.Unreadable, func(u UnreadableFile) bool { return u.Host == self })
	s.MoreUnreadable, s.Displaced = r.More, r.Displaced
	f, _ := d.fill.get(s.ID)
	if f == nil {
		return
	}
	all, more := d.unreadable(f)
	for _, u := range all {
		s.Unreadable = append(s.Unreadable, UnreadableFile{self, u})
	}
	s.MoreUnreadable = max(s.MoreUnreadable, more)
}
