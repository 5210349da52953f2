package daemon

import (
	"cmp"
	"context"
	"slices"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// UnreadableFile is a file that stays in the source and that a node could not read there
// when it was last asked for.
type UnreadableFile struct {
	Host string `json:"host"`
	stagein.Unreadable
}

// Overflow is what a node owns of a dataset and does not store, since other nodes were lost
// or scratch has taken the room.
type Overflow struct {
	Host  string `json:"host"`
	Files int64  `json:"files,omitempty"` // that the node reads through from the source, for everybody
	Bytes int64  `json:"bytes,omitempty"` // of them
	// Missing is how many files more it could not fetch when it last tried, and Error why
	// one of them.
	Missing int64  `json:"missing,omitempty"`
	Error   string `json:"error,omitempty"`
}

// unreadable is what the nodes of m have reported to this one, which leads.
func (l *leadership) unreadable(m cluster.Map, id metadata.DatasetID) (all []UnreadableFile, more int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for from, r := range l.reports {
		n, _ := m.Node(from)
		if !node.Serving(n) {
			continue
		}
		x := r.Filled[id]
		for _, u := range x.Unreadable {
			all = append(all, UnreadableFile{n.Host, u})
		}
		more += x.More
	}
	slices.SortFunc(all, func(a, b UnreadableFile) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Host, b.Host)) })
	return all, more
}

// overflow is what the nodes of m have reported to this one, which leads.
func (l *leadership) overflow(m cluster.Map, id metadata.DatasetID) (all []Overflow) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for from, r := range l.reports {
		n, _ := m.Node(from)
		if !node.Serving(n) {
			continue
		}
		x := r.Filled[id]
		s := Overflow{Host: n.Host, Files: x.Overflow.Files, Bytes: x.Overflow.Bytes, Missing: x.Missing}
		if s.Missing > 0 {
			s.Error = x.Error
		}
		if s.Files+s.Missing > 0 {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Overflow) int { return cmp.Compare(a.Host, b.Host) })
	return all
}

// addIncomplete adds what is not as it should be: of other nodes as the leader has heard,
// of this node as it is now.
func (d *Daemon) addIncomplete(ctx context.Context, s *DatasetStatus) {
	var r statusReply
	if d.Call(ctx, d.leaderID(), wire.OpStatus, statusReq{Dataset: s.ID, Incomplete: true}, &r) != nil {
		r = statusReply{} // there is no leader just now
	}
	self := d.job.Hosts[d.job.Self]
	s.Unreadable = slices.DeleteFunc(r.Unreadable, func(u UnreadableFile) bool { return u.Host == self })
	s.MoreUnreadable, s.Overflow = r.More, r.Overflow
	all, more, ok := d.datasets.Fills.Unreadable(s.ID)
	if !ok {
		return
	}
	for _, u := range all {
		s.Unreadable = append(s.Unreadable, UnreadableFile{self, u})
	}
	s.MoreUnreadable = max(s.MoreUnreadable, more)
}
