package replicas

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"sort"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// state is the state of a file of a set.
type state uint8

const (
	absent  state = iota // still to be made
	present              // the replica is here
	leaving              // its object is being removed: nothing may be stored there meanwhile
	gone                 // given back, or taken over by this node: not made again
	traded               // given up for a file that this node reads more often: made again only in another order
	kept                 // this node stores the file as its own since a time when the owner was away
)

// file is a file, or a chunk of a striped file, that the map assigns to this node for replication.
type file struct {
	fill.PieceID
	pos      uint64 // in the order of making
	size     int64
	sum      [16]byte // zeros: not known yet
	owner    metadata.NodeID
	state    state
	verified bool // read and compared since it was made
}

type amount struct{ files, bytes int64 }

// first returns 1 for the piece that counts for its file, otherwise 0.
func (f *file) first() int64 {
	if f.Chunk > 0 {
		return 0
	}
	return 1
}

// stripes is the layout of a striped file over the nodes.
type stripes struct {
	size, chunk int64
	width       int    // nodes in the stripe
	self        int    // this node's position in the stripe; -1: none
	number      uint32 // number of the first chunk, among all chunks of striped files in the manifest
}

// chunks returns the number of pieces of a file; a nil g belongs to a file that is whole on one node.
func (g *stripes) chunks() uint32 {
	if g == nil {
		return 1
	}
	return uint32((g.size-1)/g.chunk + 1)
}

// table is the part of a manifest that a set uses.
type table interface {
	Located(fn func(from manifest.Origin, a metadata.Attr) bool) error
	Record(ino metadata.Ino) (sum [16]byte, a metadata.Attr, err error)
	Chunks(ino metadata.Ino) (manifest.CRCs, error)
}

// owners is a set of owners of files.
type owners map[metadata.NodeID]bool

// set holds the replicas of one dataset on this node. The lock of Replicas guards it, except the constant fields: id,
// table, n, striped, m, self, order.
type set struct {
	id      metadata.DatasetID
	table   table
	n       int                       // replicas of each file
	striped map[metadata.Ino]*stripes // the striped files
	m       cluster.Map               // the map by which the files were chosen
	self    metadata.NodeID
	order   *preference // nil: the order of all nodes

	files   []file // by position
	made    int    // files before this one were made, or could not be
	unasked owners // owners whose checksums are not known; nil: all
	away    owners // owners that did not answer; skipped until made starts over
	missed  int    // files before made that could not be made
	ceiling uint64 // positions from here on are not made any more
	claim   uint64 // Below of the mark under an earlier map: most of those replicas are here
	have    amount // present and kept
	spare   int64  // bytes of present replicas, which can be given back
	noticed amount // have at the last call of follow
	want    amount
	given   int64
	full    bool
}

// newSet selects the files that m assigns to the node self, and sorts them by order.
func newSet(ds cluster.Dataset, table table, m cluster.Map, self metadata.NodeID, order *preference) (*set, error) {
	s := &set{
		id: ds.ID, table: table, n: ds.Replicas.Count(len(m.Nodes)), m: m, self: self, order: order,
		ceiling: math.MaxUint64, striped: make(map[metadata.Ino]*stripes), away: make(owners),
	}
	var buf []metadata.NodeID
	next := uint32(0) // number of the next chunk of a striped file
	err := table.Located(func(_ manifest.Origin, a metadata.Attr) bool {
		if fill.IsOverflow(&a) || a.Size == 0 {
			return true
		}
		order, size := m.Order(a.Ino, a.Layout), a.Size
		var g *stripes
		if a.Layout.Kind != metadata.Local {
			size = a.Layout.Chunk()
			g = &stripes{size: a.Size, chunk: size, width: len(order), self: slices.Index(order, self), number: next}
			s.striped[a.Ino] = g
			next += g.chunks()
		}
		for k := range min(len(order), int(g.chunks())) {
			if buf = m.Replicas(buf[:0], a.Ino, order[k], s.n); !slices.Contains(buf, self) {
				continue
			}
			for chunk := uint32(k); chunk < g.chunks(); chunk += uint32(len(order)) {
				s.add(fill.PieceID{Ino: a.Ino, Chunk: chunk}, min(size, a.Size-int64(chunk)*size), order[k])
			}
		}
		return true
	})
	s.sort()
	return s, err
}

// add adds a piece that this node should replicate.
func (s *set) add(p fill.PieceID, size int64, owner metadata.NodeID) {
	f := file{PieceID: p, pos: s.position(p), size: size, owner: owner}
	s.files = append(s.files, f)
	s.want.files += f.first()
	s.want.bytes += size
}

func (s *set) sort() {
	slices.SortFunc(s.files, func(a, b file) int {
		return cmp.Or(cmp.Compare(a.pos, b.pos), cmp.Compare(a.Ino, b.Ino), cmp.Compare(a.Chunk, b.Chunk))
	})
}

// position returns the place of a piece in the order in which this node makes its replicas.
func (s *set) position(p fill.PieceID) uint64 {
	return s.order.position(s.self, p.Ino, s.m.ReplicaPosition(p.Ino, p.Chunk))
}

// reached reports whether the node of a mark has its replica of a file with the place common in the order of all nodes.
func (s *set) reached(m Mark, ino metadata.Ino, common uint64) bool {
	switch m.Order {
	case "":
		return common < m.Below
	case s.order.name():
		return s.order.position(m.Node, ino, common) < m.Below
	}
	return m.Below == math.MaxUint64 // the plan is not here, but that node has all replicas
}

// Offsets of object numbers: chunkObjects of chunks, unfinished of replicas in the making. No directory has an object.
const (
	chunkObjects = 1 << 30
	unfinished   = 1 << 31
)

// object returns the object number of a replica.
func (s *set) object(p fill.PieceID) metadata.Ino {
	if g := s.striped[p.Ino]; g != nil {
		return metadata.SealedIno(s.id, metadata.DirPart, chunkObjects|(g.number+p.Chunk))
	}
	return p.Ino
}

// pieceAt returns the piece at offset off of this node's object of ino, as owner or stand-in, and the offset in it.
func (s *set) pieceAt(ino metadata.Ino, off int64) (fill.PieceID, int64) {
	g := s.striped[ino]
	if g == nil {
		return fill.PieceID{Ino: ino}, off
	}
	i := datapath.ChunkAt(g.chunk, g.width, g.self, g.size, off)
	if i < 0 {
		i = math.MaxUint32 // no file has this chunk
	}
	return fill.PieceID{Ino: ino, Chunk: uint32(i)}, off % g.chunk
}

// owned returns a piece's owner and size, and its offset in the object of a node that is owner or stand-in.
func (s *set) owned(p fill.PieceID) (owner metadata.NodeID, size int64, at func(id metadata.NodeID) int64, err error) {
	_, a, err := s.table.Record(p.Ino)
	if err != nil {
		return 0, 0, nil, err
	}
	order, chunk := s.m.Order(a.Ino, a.Layout), a.Layout.Chunk()
	switch {
	case a.Layout.Kind == metadata.Local:
		return order[0], a.Size, func(metadata.NodeID) int64 { return 0 }, nil
	case len(order) == 0 || int64(p.Chunk)*chunk >= a.Size:
		return 0, 0, nil, fmt.Errorf("inode %v has no chunk %d: %w", p.Ino, p.Chunk, syscall.ENOENT)
	}
	at = func(id metadata.NodeID) int64 { return datapath.ObjectOffset(chunk, order, a.Size, int64(p.Chunk), id) }
	return order[int(p.Chunk)%len(order)], min(chunk, a.Size-int64(p.Chunk)*chunk), at, nil
}

// sum returns the checksum that the manifest has for a piece; zeros if it has none.
func (s *set) sum(p fill.PieceID) (sum [16]byte, err error) {
	if s.striped[p.Ino] == nil {
		sum, _, err = s.table.Record(p.Ino)
		return sum, err
	}
	crcs, err := s.table.Chunks(p.Ino)
	if err == nil && int(p.Chunk) < crcs.Len() {
		sum = stagein.CRCSum(crcs.At(int(p.Chunk)))
	}
	return sum, err
}

// find returns the file of a piece; nil if it is not in the set, which may be nil.
func (s *set) find(p fill.PieceID) *file {
	if s == nil {
		return nil
	}
	pos := s.position(p)
	for i := s.index(pos); i < len(s.files) && s.files[i].pos == pos; i++ {
		if s.files[i].PieceID == p {
			return &s.files[i]
		}
	}
	return nil
}

// index returns the index of the first file at or behind pos.
func (s *set) index(pos uint64) int {
	return sort.Search(len(s.files), func(i int) bool { return s.files[i].pos >= pos })
}

// inherit takes over the files of was, the set under an earlier map. It includes replicas that the map no longer
// assigns to this node: they stay as long as there is room.
func (s *set) inherit(was *set) {
	s.ceiling, s.given = was.ceiling, was.given
	if s.order == was.order {
		s.claim = was.mark(0).Below
	}
	var more []file
	for _, f := range was.files {
		switch x := s.find(f.PieceID); {
		case x != nil:
			x.sum, x.state, x.verified = f.sum, f.state, f.verified
			if f.state == traded && s.order != was.order {
				x.state = absent
			}
		case f.state == present || f.state == leaving:
			f.pos = s.position(f.PieceID)
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

// put sets the state of a file and counts it. It returns the increase of the bytes that can be given back.
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
		s.have.files += f.first()
		s.have.bytes += f.size
	case before && !f.here():
		s.have.files -= f.first()
		s.have.bytes -= f.size
	}
	return s.spare - spare
}

// mark returns the set's progress.
func (s *set) mark(self metadata.NodeID) Mark {
	m := Mark{
		Node: self, Below: s.ceiling, Files: s.have.files, Bytes: s.have.bytes, OfFiles: s.want.files, OfBytes: s.want.bytes,
		Full: s.full, Given: s.given, Order: s.order.name(),
	}
	if s.made < len(s.files) && s.files[s.made].pos < s.ceiling {
		m.Below = s.files[s.made].pos
		if !s.full { // still growing: round down, so that the mark changes seldom
			m.Below -= m.Below % progressStep
		}
		m.Below = min(max(m.Below, s.claim), s.ceiling)
		if !s.full {
			m.Files, m.Bytes = s.upTo(m.Below)
		}
	}
	return m
}

// upTo estimates the number and size of the replicas at positions below pos.
func (s *set) upTo(pos uint64) (files, bytes int64) {
	part := float64(s.index(pos)) / float64(len(s.files))
	return min(int64(part*float64(s.want.files)), s.have.files), min(int64(part*float64(s.want.bytes)), s.have.bytes)
}
