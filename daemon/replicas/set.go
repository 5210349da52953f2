package replicas

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
)

// state is the state of a file of a set.
type state uint8

const (
	absent  state = iota // to be made
	present              // a replica is here
	gone                 // given back, or taken over by this node: not made again
	kept                 // this node has the file as its own, from a time when the owner was away
)

// file is a file that this node should have a replica of, by the map.
type file struct {
	pos      uint64 // in the order of making
	ino      metadata.Ino
	size     int64
	sum      [16]byte // zeros: not known yet
	owner    metadata.NodeID
	state    state
	verified bool // read and compared since it was made
}

type amount struct{ files, bytes int64 }

// set is the replicas of one dataset on this node. The lock of Replicas guards it, but for
// what does not change: id, table, n, m.
type set struct {
	id    metadata.DatasetID
	table *manifest.Table
	n     int         // replicas of each file
	m     cluster.Map // by which the files were chosen

	files   []file // by position
	made    int    // files before this one were made, or could not be
	summed  bool   // the owners' checksums are known
	missed  int    // files before made that could not be made
	ceiling uint64 // positions from here on are not made any more
	claim   uint64 // Below of the mark under an earlier map: most of those replicas are here
	have    amount // present and kept
	spare   int64  // bytes that can be given back: of those present
	noticed amount // have at the last call of follow
	want    amount
	given   int64
	full    bool
}

// newSet chooses the files that m gives the node self.
func newSet(ds cluster.Dataset, table *manifest.Table, m cluster.Map, self metadata.NodeID) (*set, error) {
	s := &set{id: ds.ID, table: table, n: ds.Replicas.Count(len(m.Nodes)), m: m, ceiling: math.MaxUint64}
	var buf []metadata.NodeID
	err := table.Located(func(_ manifest.Origin, a metadata.Attr) bool {
		if a.Layout.Kind != metadata.Local || a.Size == 0 {
			return true
		}
		owner := a.Layout.Node
		if buf = m.Replicas(buf[:0], a.Ino, owner, s.n); slices.Contains(buf, self) {
			s.files = append(s.files, file{pos: s.position(a.Ino), ino: a.Ino, size: a.Size, owner: owner})
			s.want.files++
			s.want.bytes += a.Size
		}
		return true
	})
	s.sort()
	return s, err
}

func (s *set) sort() {
	slices.SortFunc(s.files, func(a, b file) int { return cmp.Or(cmp.Compare(a.pos, b.pos), cmp.Compare(a.ino, b.ino)) })
}

func (s *set) position(ino metadata.Ino) uint64 { return s.m.ReplicaPosition(ino) }

// find is the file ino; nil if it is not in the set, which may be nil.
func (s *set) find(ino metadata.Ino) *file {
	if s == nil {
		return nil
	}
	pos := s.position(ino)
	for i := s.index(pos); i < len(s.files) && s.files[i].pos == pos; i++ {
		if s.files[i].ino == ino {
			return &s.files[i]
		}
	}
	return nil
}

// index is where the files at pos and behind it begin.
func (s *set) index(pos uint64) int {
	return sort.Search(len(s.files), func(i int) bool { return s.files[i].pos >= pos })
}

// inherit takes over the files of was, the set under an earlier map, including replicas that the
// map no longer gives to this node: they stay as long as there is room.
func (s *set) inherit(was *set) {
	s.ceiling, s.given, s.claim = was.ceiling, was.given, was.mark(0).Below
	var more []file
	for _, f := range was.files {
		switch x := s.find(f.ino); {
		case x != nil:
			x.sum, x.state, x.verified = f.sum, f.state, f.verified
		case f.state == present:
			more = append(more, f)
		}
	}
	s.files = append(s.files, more...)
	s.sort()
	for i := range s.files {
		f := &s.files[i]
		to, verified := f.state, f.verified
		f.state = absent
		s.put(f, to)
		f.verified = verified
	}
}

// here reports whether a file is on this node.
func (f *file) here() bool { return f != nil && (f.state == present || f.state == kept) }

// put sets the state of a file and counts it. It returns how many bytes more can be given back.
func (s *set) put(f *file, to state) (bytes int64) {
	before, spare := f.here(), s.spare
	if f.state == present {
		s.spare -= f.size
	}
	if f.state != to {
		f.verified = false
	}
	if f.state = to; to == present {
		s.spare += f.size
	}
	switch {
	case !before && f.here():
		s.have.files++
		s.have.bytes += f.size
	case before && !f.here():
		s.have.files--
		s.have.bytes -= f.size
	}
	return s.spare - spare
}

// mark is the set's progress.
func (s *set) mark(self metadata.NodeID) Mark {
	m := Mark{
		Node: self, Below: s.ceiling, Files: s.have.files, Bytes: s.have.bytes, OfFiles: s.want.files, OfBytes: s.want.bytes,
		Full: s.full, Given: s.given,
	}
	if s.made < len(s.files) && s.files[s.made].pos < s.ceiling {
		m.Below = s.files[s.made].pos
		if !s.full { // still growing: round down, so that the mark changes seldom
			m.Below -= m.Below % progressStep
			m.Files, m.Bytes = s.upTo(m.Below)
		}
		m.Below = min(max(m.Below, s.claim), s.ceiling)
	}
	return m
}

// upTo counts the replicas at positions below pos, about.
func (s *set) upTo(pos uint64) (files, bytes int64) {
	part := float64(pos) / math.MaxUint64
	return min(int64(part*float64(s.want.files)), s.have.files), min(int64(part*float64(s.want.bytes)), s.have.bytes)
}
