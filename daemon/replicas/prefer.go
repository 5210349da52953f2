package replicas

import (
	"math"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/accessplan"
)

// preference is how often each node reads each file according to an access plan. A node without room for all files
// makes replicas of the files that it reads most often. All nodes compute the same preference from the plan, the
// manifest and the number of nodes, so a mark tells the others which replicas exist in this order, too. Ranks are
// assumed to be on the nodes in blocks, as Slurm and torchrun place them; otherwise a preference gains nothing.
type preference struct {
	plan   *accessplan.Plan
	digest string // prefix of the plan's digest; "": all files are equal
	number *accessplan.Numbering
	reader [][]metadata.NodeID // by epoch and number of a file: the node that reads it first
}

const (
	mostEpochs = 8              // of a plan whose epochs differ: over more, nodes read most files about equally often
	mostReads  = 32 << 20       // files times epochs, two bytes each
	noReader   = math.MaxUint16 // marks a file that an epoch leaves out
)

// newPreference computes a preference among nodes nodes. It counts the epochs after the first, which is mostly read by
// the time replicas are made. If the plan has no number of ranks, or does not fit the dataset, all files are equal.
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

// position returns the place of a file in the order in which a node makes its replicas: by decreasing number of reads
// by the node, and then by common, the file's place in the order of all nodes.
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

// width returns the number of positions of the files that a node reads equally often.
func (p *preference) width() uint64 { return math.MaxUint64 / uint64(len(p.reader)+1) }

// of returns the plan of a preference.
func (p *preference) of() *accessplan.Plan {
	if p == nil {
		return nil
	}
	return p.plan
}

// name returns the digest of a preference; "" if all files are equal.
func (p *preference) name() string {
	if p == nil {
		return ""
	}
	return p.digest
}
