package leader

import (
	"cmp"
	"slices"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// UnreadableFile is a file that stays in the source and that a node could not read there at its last attempt.
type UnreadableFile struct {
	Host string `json:"host"`
	fill.Unreadable
}

// Overflow counts the files of a dataset that a node owns and does not store, because other nodes were lost or scratch
// has taken the room.
type Overflow struct {
	Host  string `json:"host"`
	Files int64  `json:"files,omitempty"` // files that the node reads through from the source, for all nodes
	Bytes int64  `json:"bytes,omitempty"` // bytes of these files
	// Missing counts further files that it could not fetch at its last attempt, and Error is the reason for one of
	// them.
	Missing int64  `json:"missing,omitempty"`
	Error   string `json:"error,omitempty"`
}

// serving calls f with the report of each node that serves in m.
func (l *Leader) serving(m cluster.Map, f func(n cluster.Node, r *Report)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range m.Nodes {
		if r, known := l.reports[n.ID]; known && node.Serving(n) {
			f(n, &r.Report)
		}
	}
}

// Marks returns the nodes' replica marks by dataset, and their version; nil and 0 if known is that version.
func (l *Leader) Marks(known uint64) (version uint64, all map[metadata.DatasetID][]replicas.Mark) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.marks == known {
		return 0, nil
	}
	all = make(map[metadata.DatasetID][]replicas.Mark)
	for _, r := range l.reports {
		for id, m := range r.Replicas {
			all[id] = append(all[id], m)
		}
	}
	return l.marks, all
}

// Loads returns the last reported load of each node of m that serves.
func (l *Leader) Loads(m cluster.Map) map[metadata.NodeID]Load {
	all := make(map[metadata.NodeID]Load)
	l.serving(m, func(n cluster.Node, r *Report) { all[n.ID] = r.Load })
	return all
}

// Unreadable returns the files of a dataset that nodes of m cannot read from the source, and how many more they do not
// list.
func (l *Leader) Unreadable(m cluster.Map, id metadata.DatasetID) (all []UnreadableFile, more int64) {
	l.serving(m, func(n cluster.Node, r *Report) {
		for _, u := range r.Filled[id].Unreadable {
			all = append(all, UnreadableFile{n.Host, u})
		}
		more += r.Filled[id].More
	})
	slices.SortFunc(all, func(a, b UnreadableFile) int { return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Host, b.Host)) })
	return all, more
}

// Overflow returns, per node of m, the files of a dataset that it owns and does not store.
func (l *Leader) Overflow(m cluster.Map, id metadata.DatasetID) (all []Overflow) {
	l.serving(m, func(n cluster.Node, r *Report) {
		x := r.Filled[id]
		s := Overflow{Host: n.Host, Files: x.Overflow.Files, Bytes: x.Overflow.Bytes, Missing: x.Missing, Error: x.Lack}
		if s.Files+s.Missing > 0 {
			all = append(all, s)
		}
	})
	slices.SortFunc(all, func(a, b Overflow) int { return cmp.Compare(a.Host, b.Host) })
	return all
}

// FillProgress sums up the nodes' progress with fetching the files of a dataset.
func (l *Leader) FillProgress(id metadata.DatasetID) stagein.Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fillProgress(id, l.reports)
}

func fillProgress(id metadata.DatasetID, reports map[metadata.NodeID]heard) stagein.Progress {
	var all []stagein.Progress
	for _, r := range reports {
		if x, ok := r.Filled[id]; ok {
			all = append(all, x.Progress)
		}
	}
	return stagein.Sum(all)
}

// OutFailures sums up the stage-out failures of the nodes of m. The shares of other nodes have been reassigned.
func (l *Leader) OutFailures(m cluster.Map) []stageout.Failures {
	var all []stageout.Failures
	l.serving(m, func(_ cluster.Node, r *Report) { all = append(all, r.Out...) })
	return stageout.Merge(all)
}

// Notifies reports whether the node of r notifies the user of failures: the node with the job's output or, if none has
// it, the first that serves.
func (l *Leader) Notifies(m cluster.Map, r *Report) bool {
	ids := node.Participants(m)
	if r.HasOutput || len(ids) == 0 || ids[0] != r.Node {
		return r.HasOutput
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		if h, known := l.reports[id]; !known || h.HasOutput {
			return false
		}
	}
	return true
}
