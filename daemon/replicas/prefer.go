package replicas

import (
	"math"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// preference is how often each node reads each file by an access plan. A node with too little room for all files makes
// replicas of those that it reads most often. All nodes compute the same from the plan, the manifest and the number of nodes: a mark tells
// the others which replicas are there in this order, too. Ranks are expected on the nodes in blocks, as Slurm and torchrun
// start them; where they are not, a preference gains nothing.
type preference struct {
	plan   *accessplan.Plan
	digest string // the beginning of the plan's; "": all files are alike
	number *accessplan.Numbering
	reader [][]metadata.NodeID // by epoch and number of a file: the node that reads it first
}

const (
	mostEpochs = 8              // of a plan whose epochs differ: in more, nodes read most files about equally often
	mostReads  = 32 << 20       // files times epochs, two bytes each
	noReader   = math.MaxUint16 // of a file that an epoch leaves out
)

// newPreference computes a preference among so many nodes. Epochs after the first count: when replicas are made, the first
// is mostly over. If the plan does not say how many ranks there are, or does not fit the dataset, all files are alike.
func newPreference(plan *accessplan.Plan, files accessplan.Files, nodes int) *preference {
	p := &preference{plan: plan}
	if plan.Ranks == 0 || plan.FirstOnly {
		return p
	}
	number, err := accessplan.Number(files, plan)
	if err != nil || number.Len() == 0 {
		return p // prefetch reports a plan that does not fit
	}
	from, to := 1, 1+mostEpochs
	if plan.Epochs > 0 {
		to = min(to, plan.Epochs)
	}
	if plan.Fixed() || to <= from {
		from, to = 0, 1
	}
	for e := from; e < to && (e+1-from)*number.Len() <= mostReads; e++ {
		x, err := plan.Epoch(e, number.Len())
		if err != nil {
			return p
		}
		reader := make([]metadata.NodeID, number.Len())
		for i := range reader {
			reader[i] = noReader
			if rank, _, ok := x.Find(i); ok {
				reader[i] = metadata.NodeID(rank * nodes / plan.Ranks)
			}
		}
		p.reader = append(p.reader, reader)
	}
	if p.number = number; len(p.reader) > 0 {
		p.digest = plan.Digest()[:8]
	}
	return p
}

// position is the place of a file in the order in which a node makes its replicas: files that it reads more often come first,
// those that it reads equally often in the order of common, the place in the order of all nodes.
func (p *preference) position(id metadata.NodeID, ino metadata.Ino, common uint64) uint64 {
	if p == nil || p.digest == "" {
		return common
	}
	unread := len(p.reader)
	if i, ok := p.number.Of(ino); ok {
		for _, reader := range p.reader {
			if reader[i] == id {
				unread--
			}
		}
	}
	return uint64(unread)*p.width() + common/uint64(len(p.reader)+1)
}

// width is how many positions the files have that a node reads equally often.
func (p *preference) width() uint64 { return math.MaxUint64 / uint64(len(p.reader)+1) }

// of is the plan of a preference.
func (p *preference) of() *accessplan.Plan {
	if p == nil {
		return nil
	}
	return p.plan
}

// name is the digest of a preference; "": all files are alike.
func (p *preference) name() string {
	if p == nil {
		return ""
	}
	return p.digest
}
