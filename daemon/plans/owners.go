package plans

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// noOwner is the owner of a file that is not whole on one node: a missing or a striped file.
const noOwner = 0xffff

// OwnerMap maps the files of a plan's numbering to the nodes that store them.
type OwnerMap struct {
	Root  string          `json:"root"` // the files below it are numbered
	Files int             `json:"files"`
	Nodes []string        `json:"nodes"` // host names, by node
	Self  metadata.NodeID `json:"self"`
	// Owner has a node for each file, 16 bits, little-endian, in base64; 65535 means no node.
	Owner string `json:"owner"`
}

// Owners returns the owner map of a dataset. It is the same on all nodes at all times, even while a node of m is lost:
// each rank uses it independently to divide the samples.
func Owners(files accessplan.Files, plan *accessplan.Plan, m cluster.Map, self metadata.NodeID) (OwnerMap, error) {
	n, err := accessplan.Number(files, plan)
	if err != nil {
		return OwnerMap{}, err
	}
	b := make([]byte, 2*n.Len())
	for i := range b {
		b[i] = noOwner & 0xff
	}
	err = files.Files(func(_ string, _ uint32, _ string, a metadata.Attr) bool {
		if i, ok := n.Of(a.Ino); ok && a.Layout.Kind == metadata.Local {
			binary.LittleEndian.PutUint16(b[2*i:], uint16(a.Layout.Node))
		}
		return true
	})
	if err != nil {
		return OwnerMap{}, err
	}
	o := OwnerMap{Root: n.Root(), Files: n.Len(), Self: self, Owner: base64.StdEncoding.EncodeToString(b)}
	for _, x := range m.Nodes {
		o.Nodes = append(o.Nodes, x.Host)
	}
	return o, nil
}
