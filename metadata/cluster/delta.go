package cluster

import (
	"slices"
	"sync"

	"github.com/bivouacfs/bivouac/metadata"
)

// Delta turns one View into another. It is small if many nodes have changed alike, so that all nodes of a large job
// learn of each other's start from a few lines.
type Delta struct {
	From     uint64         `json:"from"` // Version of the View that it applies to; 0 is the first View
	Version  uint64         `json:"version"`
	Epoch    metadata.Epoch `json:"epoch"`
	Nodes    []nodeGroup    `json:"nodes,omitempty"`
	Datasets []Dataset      `json:"datasets,omitempty"` // new and changed datasets, by ID
	Closing  bool           `json:"closing,omitempty"`
	Copied   bool           `json:"copied,omitempty"`
	// Restored is the whole Map.Restored.
	Restored []Restoration `json:"restored,omitempty"`
}

// nodeGroup is a group of nodes with equal fields.
type nodeGroup struct {
	IDs     [][2]metadata.NodeID `json:"ids"` // ranges: first and last
	State   State                `json:"state"`
	Since   metadata.Epoch       `json:"since"`
	Terms   []Term               `json:"terms,omitempty"`
	Addr    string               `json:"addr,omitempty"`  // unless Known
	Known   bool                 `json:"known,omitempty"` // each has the address that all nodes know from the start
	Partner Partner              `json:"partner,omitzero"`
	Heir    Partner              `json:"heir,omitzero"`
	Switch  string               `json:"switch,omitempty"`
}

func (g *nodeGroup) alike(o *nodeGroup) bool {
	return g.State == o.State && g.Since == o.Since && g.Addr == o.Addr && g.Known == o.Known && g.Partner == o.Partner && g.Heir == o.Heir && g.Switch == o.Switch && slices.Equal(g.Terms, o.Terms)
}

// Since returns the Delta from the View old to v, both of the same job. addrs has the address of each node that all
// nodes know from the start; nodes without such an address are missing there.
func (v View) Since(old View, addrs []string) Delta {
	d := Delta{From: old.Version, Version: v.Version, Epoch: v.Map.Epoch, Closing: v.Closing, Copied: v.Copied, Restored: v.Map.Restored}
	for i, n := range v.Map.Nodes {
		was, _ := old.Map.Node(n.ID)
		if n.State == was.State && n.Since == was.Since && n.Addr == was.Addr && n.Partner == was.Partner && n.Heir == was.Heir && n.Switch == was.Switch && slices.Equal(n.Terms, was.Terms) {
			continue
		}
		g := nodeGroup{IDs: [][2]metadata.NodeID{{n.ID, n.ID}}, State: n.State, Since: n.Since, Terms: n.Terms, Partner: n.Partner, Heir: n.Heir, Switch: n.Switch}
		if g.Known = i < len(addrs) && addrs[i] == n.Addr; !g.Known {
			g.Addr = n.Addr
		}
		d.add(g)
	}
	for i, s := range v.Datasets {
		if i >= len(old.Datasets) || s != old.Datasets[i] {
			d.Datasets = append(d.Datasets, s)
		}
	}
	return d
}

// add adds one node to a group of equal nodes, or as a new group.
func (d *Delta) add(n nodeGroup) {
	i := slices.IndexFunc(d.Nodes, func(g nodeGroup) bool { return g.alike(&n) })
	if i < 0 {
		d.Nodes = append(d.Nodes, n)
		return
	}
	ids := d.Nodes[i].IDs
	if last := &ids[len(ids)-1]; last[1]+1 == n.IDs[0][0] {
		last[1]++
		return
	}
	d.Nodes[i].IDs = append(ids, n.IDs[0])
}

// Apply returns the View that results from applying d to v. It returns false if d belongs to another View, or is
// invalid for this job.
func (d *Delta) Apply(v View, addrs []string) (View, bool) {
	if d.From != v.Version || d.Version < d.From {
		return v, false
	}
	next := View{Version: d.Version, Map: Map{Epoch: d.Epoch, Seed: v.Map.Seed, Nodes: slices.Clone(v.Map.Nodes), Restored: d.Restored}, Datasets: slices.Clone(v.Datasets), Closing: d.Closing, Copied: d.Copied}
	for _, g := range d.Nodes {
		for _, ids := range g.IDs {
			if ids[0] > ids[1] || int(ids[1]) >= len(next.Map.Nodes) || g.Known && int(ids[1]) >= len(addrs) {
				return v, false
			}
			for i := int(ids[0]); i <= int(ids[1]); i++ {
				n := &next.Map.Nodes[i]
				n.State, n.Since, n.Terms, n.Addr, n.Partner, n.Heir, n.Switch = g.State, g.Since, g.Terms, g.Addr, g.Partner, g.Heir, g.Switch
				if g.Known {
					n.Addr = addrs[i]
				}
			}
		}
	}
	for _, s := range d.Datasets {
		switch i := int(s.ID) - 1; {
		case i >= 0 && i < len(next.Datasets):
			next.Datasets[i] = s
		case i == len(next.Datasets):
			next.Datasets = append(next.Datasets, s)
		default:
			return v, false
		}
	}
	return next, true
}

// maxHistory limits the Views that a History remembers. A node with an older View gets the Delta from the first View.
const maxHistory = 32

// History keeps the last Views of a job, to compute Deltas between them.
type History struct {
	first View
	addrs []string

	mu     sync.Mutex
	views  []View           // under mu: oldest first
	deltas map[uint64]Delta // under mu: to the last View, by From
}

// NewHistory returns a History that starts with the first View of a job.
func NewHistory(first View, addrs []string) *History { return &History{first: first, addrs: addrs} }

// Delta returns the Delta to v from the View of version from, or from the first View if the History does not have that
// version.
func (h *History) Delta(from uint64, v View) Delta {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.views) == 0 || h.views[len(h.views)-1].Version < v.Version {
		h.views = append(h.views, v)
		h.views = h.views[max(0, len(h.views)-maxHistory):]
		h.deltas = make(map[uint64]Delta)
	}
	v = h.views[len(h.views)-1]
	old := h.first
	for _, x := range h.views {
		if x.Version == from {
			old = x
		}
	}
	d, ok := h.deltas[old.Version]
	if !ok {
		d = v.Since(old, h.addrs)
		h.deltas[old.Version] = d
	}
	return d
}

// Apply applies d to v, or to the first View. It returns false if d applies to neither.
func (h *History) Apply(d *Delta, v View) (View, bool) {
	if d.From == 0 {
		v = h.first
	}
	return d.Apply(v, h.addrs)
}
