package copies

import (
	"cmp"
	"math"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Range numbers a range of a copy that is made.
type Range struct {
	By  metadata.Epoch // the map that wants the copy
	Run metadata.Run   // of the source
	Try uint64         // in that run; a range that is not answered ends a try
	Seq uint64         // in the try; 0 has no bytes: it empties the copy
}

// Intake is which ranges a node stores of a copy that is made there. One whose sender has given it up can arrive at any
// time: it is refused when another try has begun. The zero value has stored nothing.
type Intake struct {
	last  Range
	begun bool
}

// Take reports whether r is to be stored. The caller stores it before it calls Take again.
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

// End refuses the rest of the try: the object is removed.
func (i *Intake) End() { i.last.Seq = math.MaxUint64 }

// Over reports whether i can be forgotten by a node whose map is own: all that it has stored or could store counts.
func (i *Intake) Over(own cluster.Map) bool { return !Wanted(i.last.By, own) }

// Wanted reports whether the copies that the map of the epoch by wants are to be made, by a node's own map.
func Wanted(by metadata.Epoch, own cluster.Map) bool {
	return by > own.Changed() || by == own.Changed() && own.Unrestored()
}
