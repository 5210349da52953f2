package stagein

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Plan says who reads what of a source. It is JSON on its way to the nodes.
type Plan struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Name    string             `json:"name"`
	Source  source.Name        `json:"source"` // with symbolic links followed
	Kind    source.Kind        `json:"kind"`
	Size    int64              `json:"size"` // bytes that have to be read
	Mtime   metadata.Time      `json:"mtime"`
	Head    []byte             `json:"head,omitempty"` // the first block of a tar, read already
	UID     uint32             `json:"uid"`            // who owns what is staged
	GID     uint32             `json:"gid"`
	Stripe  int64              `json:"stripe"` // files larger than this are striped
	Parts   []Part             `json:"parts"`
}

// Part is what one node reads.
type Part struct {
	Index uint16          `json:"index"`
	Node  metadata.NodeID `json:"node"`
	Off   int64           `json:"off,omitempty"` // the region of a tar: from Off
	End   int64           `json:"end,omitempty"` // to End
	Bytes int64           `json:"bytes"`         // of the source that the part has
	Items []source.Item   `json:"items,omitempty"`
}

// PlanConfig is what a plan is made of.
type PlanConfig struct {
	FS      source.FS
	Request Request
	Dataset metadata.DatasetID
	Map     cluster.Map
	UID     uint32
	GID     uint32
	// Free tells what a node has left, in bytes; false if it is not known.
	// nil is: nothing is known.
	Free    func(metadata.NodeID) (int64, bool)
	Stripe  int64 // files larger than this are striped; 0 is DefaultStripe
	Region  int64 // the least bytes of a tar that are worth a node; 0 is 1 MiB
	Workers int   // of the walk of a directory; 0 is 16
	Log     *logrus.Entry
}

// DefaultStripe is the size above which a sealed file is striped.
const DefaultStripe = 64 << 20

// MakePlan looks at the source and divides it among the nodes that are up. It
// reads one block of a tar, which the plan carries, and no data of a directory.
func MakePlan(ctx context.Context, cfg PlanConfig) (*Plan, error) {
	return nil, errTODO
}
