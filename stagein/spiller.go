package stagein

import (
	"container/heap"
	"fmt"
	"maps"
	"math"
	"slices"
	"syscall"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

// farthest is the most bytes that may have to be unpacked to come to a file that stays in
// a compressed tar.
const farthest = 64 << 20

// placesApart is how many bytes there are between two places of a compressed tar.
const placesApart = 4 << 20

// windowsMost is how many bytes are kept at the most, of all compressed tars of a dataset, of what has to be
// known of what lies before places. They are farther apart when it would be more.
const windowsMost = 32 << 20

// placeless is how many bytes one of several compressed tars may unpack to without a place in its
// middle to begin at. What is unpacked at a time in one that has such is no more.
const placeless = 16 << 20

// spiller chooses, while compressed tars are read one after the other, what of them stays
// there, since the nodes have no room for it. What a node has no room for is taken back from
// it by a hash of the paths: what is here and what is not mix evenly, whatever the order. Of
// a plain tar that is read with them it does so, too.
type spiller struct {
	s     *Share
	push  *pusher
	from  *unpack.Unpacked // nil is a plain tar
	bars  Bars
	was   Bars                      // of which all that is at or above them is gone
	room  map[metadata.NodeID]int64 // for files of the tar
	left  map[metadata.NodeID]int64 // of room
	here  map[metadata.NodeID]*tops // files that are whole on one node
	wide  *tops                     // those that are on several
	again []taken                   // that an earlier try may have taken back
	held  int64                     // bytes that were here when the share began
	some  bool                      // stays in the source
	sure  bool                      // that some will have to

	past    int64             // bytes of the compressed tars that were read before this one
	looked  int64             // up to where in this one it was seen how close places are wanted
	portion float64           // of the nodes' room: other parts have the rest
	places  map[uint32][]byte // unpack.Places, by the number of the tar
	none    string            // a tar that was read and has no place to begin at; "" is none such

	number uint32                   // of the tar from comes of
	before map[uint32]unpack.Places // that an earlier try has found, by the number of the tar
	noted  int64                    // bytes that were written to ShareConfig.Places
}

// kept is a file that is here.
type kept struct {
	h    uint64
	ino  metadata.Ino
	size int64
	// takes is about what it takes on the disks, in bytes; 0 is not known, of a file with
	// holes that an earlier try has stored: then its going makes no room that is counted.
	takes int64
}

// tops is files, as a heap: the one with the largest hash comes first.
type tops []kept

func (t tops) Len() int           { return len(t) }
func (t tops) Less(i, j int) bool { return t[i].h > t[j].h }
func (t tops) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *tops) Push(x any)        { *t = append(*t, x.(kept)) }
func (t *tops) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// spillHash is what chooses whether a file stays in the source.
func spillHash(seed uint64, path string) uint64 { return xxh3.HashStringSeed(path, seed^0x7370696c6c) }

func newSpiller(s *Share) *spiller {
	x := &spiller{
		s: s, bars: make(Bars), was: make(Bars), wide: new(tops),
		room: make(map[metadata.NodeID]int64), left: make(map[metadata.NodeID]int64), here: make(map[metadata.NodeID]*tops),
		portion: s.cfg.Part.portion(s.cfg.Plan.Parts), places: make(map[uint32][]byte),
		before: make(map[uint32]unpack.Places),
	}
	for _, id := range s.cfg.Map.Up() {
		x.here[id] = new(tops)
	}
	if e := s.cfg.Ebb; e != nil && s.cfg.Resume != nil {
		x.bars, x.was = maps.Clone(e.Now), maps.Clone(e.Was)
	}
	return x
}

// takesOf is what the node number i of an object's takes for a file of a size, in whole pages.
func takesOf(o *object, size int64, i int) int64 {
	if o.layout.Kind == metadata.Local {
		return pages(size)
	}
	chunk, n := o.layout.Chunk(), int64(len(o.order))
	chunks := (size + chunk - 1) / chunk
	all := (chunks/n + min(max(chunks%n-int64(i), 0), 1)) * chunk
	if (chunks-1)%n == int64(i) {
		all -= chunks*chunk - size // the last one
	}
	return pages(all)
}

func (x *spiller) hold(k kept, o *object) {
	switch {
	case o.layout.Kind == metadata.Local && x.here[o.layout.Node] == nil: // no node of the plan's
	case o.layout.Kind == metadata.Local:
		heap.Push(x.here[o.layout.Node], k)
	default:
		heap.Push(x.wide, k)
	}
}

// admit says whether a member is stored: if not, o is nowhere from then on.
func (x *spiller) admit(it *source.Item, o *object) error {
	if x == nil || it.Hardlink != "" || !it.Is(source.TypeRegular) || it.Size == 0 {
		return nil
	}
	x.look(it.Off)
	if err := x.reach(it); err != nil {
		return err
	}
	k := kept{spillHash(x.s.cfg.Map.Seed, it.Path), o.ino, it.Size, takesUp(it)}
	if !x.bars.keeps(k.h, o.order) || x.tooLarge(k.takes, o) {
		x.stays(o)
		return nil
	}
	for i, id := range o.order {
		n := takesOf(o, k.takes, i)
		if n <= x.left[id] {
			continue
		}
		fits, err := x.lower(id, n, k.h)
		if err != nil {
			return err
		}
		if !fits {
			x.stays(o)
			return nil
		}
	}
	for i, id := range o.order {
		x.left[id] -= takesOf(o, k.takes, i)
	}
	x.hold(k, o)
	return nil
}

// tooLarge reports whether a file has no room even where nothing else is.
func (x *spiller) tooLarge(size int64, o *object) bool {
	for i, id := range o.order {
		if takesOf(o, size, i) > x.room[id] {
			return true
		}
	}
	return false
}

// stays makes an object one that is nowhere. The size of chunks is that of those that have
// sums, if it would be striped.
func (x *spiller) stays(o *object) {
	x.some = true
	o.layout, o.order = metadata.Layout{Kind: metadata.Spilled, ChunkSize: o.layout.ChunkSize}, nil
}

// slack is what is made free on a node beside what is needed: what is under way has to be
// waited for each time.
func (x *spiller) slack(id metadata.NodeID) int64 { return min(x.room[id]/32, 1<<30) }

// lower lowers the bar of a node, so that it has room for n bytes of a file of the hash h;
// false if that file has to stay away itself.
func (x *spiller) lower(id metadata.NodeID, n int64, h uint64) (fits bool, err error) {
	var gone []taken
	bar, set := x.bars[id]
	if !set {
		bar = math.MaxUint64
	}
	for {
		t, wide := x.top(id)
		if t == nil || (*t)[0].h <= h || x.left[id] >= n+x.slack(id) && (*t)[0].h < bar {
			break
		}
		k := heap.Pop(t).(kept)
		bar = k.h
		gone = append(gone, x.free(k, id, wide))
	}
	if fits = x.left[id] >= n; !fits {
		bar = min(bar, h)
	}
	x.bars[id] = bar
	return fits, x.evict(gone)
}

// top is where the file with the largest hash is that lies on a node.
func (x *spiller) top(id metadata.NodeID) (t *tops, wide bool) {
	here := x.here[id]
	switch {
	case here != nil && len(*here) > 0 && (len(*x.wide) == 0 || (*here)[0].h >= (*x.wide)[0].h):
		return here, false
	case len(*x.wide) > 0:
		return x.wide, true
	}
	return nil, false
}

// lost takes note that what there was of a file, the last one that was admitted, is taken back.
func (x *spiller) lost(o *object) {
	if x == nil {
		return
	}
	t := x.wide
	if o.layout.Kind == metadata.Local {
		t = x.here[o.layout.Node]
	}
	if t == nil {
		return
	}
	if i := slices.IndexFunc(*t, func(k kept) bool { return k.ino == o.ino }); i >= 0 {
		k := heap.Remove(t, i).(kept)
		for i, id := range o.order {
			x.left[id] += takesOf(o, k.takes, i)
		}
	}
}

// reach refuses to go on when what stays in the tar could not be come to.
func (x *spiller) reach(it *source.Item) error {
	switch {
	case !x.some && !x.sure:
		return nil
	case x.none != "":
		return x.noWay(x.none)
	case x.from == nil || x.from.Way(it.Off) <= x.s.lim.farthest:
		return nil
	}
	return x.noWay(it.Path)
}

// use says where the tar of a number comes from, and who stores its members.
func (x *spiller) use(push *pusher, from *unpack.Unpacked, number uint32) {
	if x != nil {
		x.push, x.from, x.number, x.looked = push, from, number, 0
	}
}

// ended takes note of how what stays in a compressed tar is come to, and refuses one that has
// no place to begin at, if something stays there: all but the beginning is too far from that.
func (x *spiller) ended(p *Plan, k *packed) error {
	if x == nil {
		return nil
	}
	x.past += p.Size
	places, way := x.from.Places(), x.from.Way(k.end)
	small := x.s.lim.apart
	if len(x.s.cfg.Plan.Parts) > 1 || len(x.s.cfg.Part.Archives) > 1 {
		small = x.s.lim.small
	}
	switch none := way > x.s.lim.farthest || len(places) < 2 && way > small; {
	case !none:
		all := places.End(p.Kind, p.Size, k.all)
		if err := x.write(all, true); err != nil {
			return err
		}
		x.places[p.Number] = all.Append(nil)
	case x.none == "":
		x.none = k.last
	}
	return x.end()
}

// end refuses what was staged, if a part of it stays in tars of which one has no place to begin at.
func (x *spiller) end() error {
	if x == nil || !x.some || x.none == "" {
		return nil
	}
	return x.noWay(x.none)
}

func (x *spiller) noWay(path string) error {
	node, given := x.s.fullest()
	given = int64(float64(given) / max(x.portion, 1e-3)) // as much as all parts together
	return x.s.lacks(node, given, fmt.Errorf("member %q: it cannot stay in the source either, as there is no place near it to begin to unpack at: %w", path, syscall.ENOSPC))
}
