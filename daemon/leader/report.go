package leader

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/bivouacfs/bivouac/daemon/dataset"
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/daemon/rebuild"
	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/daemon/stageout"
	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Report is the body of wire.OpReport: a node's state as reported by itself.
type Report struct {
	Node    metadata.NodeID `json:"node"`
	Addr    string          `json:"addr"`
	Switch  string          `json:"switch,omitempty"` // leaf switch; "": unknown
	Run     metadata.Run    `json:"run,omitempty"`    // of the node's daemon
	Version uint64          `json:"version"`          // of the view that the node has
	Ready   bool            `json:"ready,omitempty"`
	Leaving bool            `json:"leaving,omitempty"` // asked to leave; waits for the others
	Done    bool            `json:"done,omitempty"`    // its part of the stage-out has ended
	Copied  uint64          `json:"copied,omitempty"`  // Participants of the map by which that part was assigned
	// Manifests has the digest of each dataset's manifest that the node has loaded; Trouble has the errors of those
	// that it could not load.
	Manifests map[metadata.DatasetID]string `json:"manifests,omitempty"`
	Trouble   map[metadata.DatasetID]string `json:"trouble,omitempty"`
	// Hidden lists the datasets of Manifests that programs of the node do not see yet.
	Hidden []metadata.DatasetID `json:"hidden,omitempty"`
	// Standby has the digest of each manifest that the node holds as a standby and has not loaded yet.
	Standby map[metadata.DatasetID]string `json:"standby,omitempty"`
	// Filled is the node's progress with each dataset whose files it fetches.
	Filled map[metadata.DatasetID]dataset.FillReport `json:"filled,omitempty"`
	Load
	// Replicas is the node's progress with its replicas; MarksVersion is the version of the other nodes' marks that it
	// has.
	Replicas     map[metadata.DatasetID]replicas.Mark `json:"replicas,omitempty"`
	MarksVersion uint64                               `json:"marks_version,omitempty"`
	// Out lists the node's stage-out failures; HasOutput says that the job's output is on the node, so that it can
	// notify the user.
	Out       []stageout.Failures `json:"out,omitempty"`
	HasOutput bool                `json:"has_output,omitempty"`
}

// Load is the space that a node uses and the traffic of its mount.
type Load struct {
	Space   datapath.Space `json:"space"`
	Traffic node.Traffic   `json:"traffic"`
	Rates   node.Rates     `json:"rates"` // bytes per second, recently
	// Rebuilt is the node's progress with the copies that replace lost ones.
	Rebuilt rebuild.Mark `json:"rebuilt,omitzero"`
}

// differs reports whether r has a change from was on which the leader must act.
func (r *Report) differs(was *Report) bool {
	same := func(a, b dataset.FillReport) bool { return a.Complete == b.Complete && a.Error == b.Error }
	return r.Ready != was.Ready || r.Leaving != was.Leaving || r.Done != was.Done || r.Copied != was.Copied || r.Rebuilt.Epoch != was.Rebuilt.Epoch ||
		!maps.Equal(r.Manifests, was.Manifests) || !slices.Equal(r.Hidden, was.Hidden) || !maps.Equal(r.Trouble, was.Trouble) || !maps.EqualFunc(r.Filled, was.Filled, same)
}

// Every returns the time between two reports of a node: several fit into the silence after which it is declared down.
func Every(hosts int, down time.Duration) time.Duration {
	return min(250*time.Millisecond*time.Duration(1+hosts/128), down/8)
}

// Participants returns a hash of the set of nodes that serve in m.
func Participants(m cluster.Map) uint64 {
	h := fnv.New64a()
	for _, id := range node.Participants(m) {
		_, _ = h.Write(binary.LittleEndian.AppendUint16(nil, uint16(id))) // never fails
	}
	return h.Sum64()
}

// Members returns the nodes of a job that form the control group: the first three, or one.
func Members(hosts int) []metadata.NodeID {
	if hosts < 3 {
		return []metadata.NodeID{0}
	}
	return []metadata.NodeID{0, 1, 2}
}

// Joining reports whether a node has neither come up nor been declared down.
func Joining(m cluster.Map) bool { return len(HostsIn(m, cluster.Joining)) > 0 }

// Absent returns the hosts that were declared down before they ever served. A host that was lost later does not prevent
// another one from restarting.
func Absent(m cluster.Map) []string {
	var hosts []string
	for _, n := range m.Nodes {
		if n.State == cluster.Down && len(n.Terms) == 0 {
			hosts = append(hosts, n.Host)
		}
	}
	return hosts
}

// HostsIn returns the hosts in state s.
func HostsIn(m cluster.Map, s cluster.State) []string {
	var hosts []string
	for _, n := range m.Nodes {
		if n.State == s {
			hosts = append(hosts, n.Host)
		}
	}
	return hosts
}
