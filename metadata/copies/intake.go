package copies

import (
	"cmp"
	"math"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Range identifies a range of a copy that is being made.
type Range struct {
	By  metadata.Epoch // epoch of the map that requires the copy
	Run metadata.Run   // of the source
	Try uint64         // number in that run; a range without an answer ends a try
	Seq uint64         // number in the try; 0 has no bytes: it empties the copy
}

// Intake decides which ranges a node stores of a copy that is being made there. A range that its sender has given up
// can arrive at any time: it is refused once another try has begun. The zero value has stored nothing.
type Intake struct {
	last  Range
	begun bool
}

// Take reports whether r must be stored. The caller stores it before it calls Take again.
func (i *Intake) Take(r Range) bool {
	later := cmp.Or(cmp.Compare(r.By, i.last.By), cmp.Compare(r.Run, i.last.Run), cmp.Compare(r.Try, i.last.Try))
	next := i.begun && later == 0 && r.Seq == i.last.Seq+1 && r.Seq > 0
	if r.Seq == 0 {
		next = !i.begun || later > 0
	}
	if next {
		i.last, i.begun = r, true
	}
	return next
}

// End refuses the rest of the try, because the object was removed.
func (i *Intake) End() { i.last.Seq = math.MaxUint64 }

// Over reports whether a node whose map is own can drop i: all ranges that it has stored or could store count.
func (i *Intake) Over(own cluster.Map) bool { return !Wanted(i.last.By, own) }

// Wanted reports whether, by a node's own map, the copies that the map of the epoch by requires are still to be made.
func Wanted(by metadata.Epoch, own cluster.Map) bool {
	return by > own.Changed() || by == own.Changed() && own.Unrestored()
}
