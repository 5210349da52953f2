package stagein

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Others is the fills of the same dataset on the other nodes.
type Others interface {
	// Claim makes an offer to a node. It waits until the node knows the dataset.
	Claim(ctx context.Context, to metadata.NodeID, c Claim) (granted []bool, err error)
	// Put writes all of p at off of the object of ino on a node.
	Put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, p []byte, off int64) error
	// PutAll is that of Target.
	PutAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) (errs []error, err error)
	// Landed tells a node what has become of what it granted.
	Landed(ctx context.Context, to metadata.NodeID, l Landing) error
}

// Claim is a node's offer to bring pieces to the one that is to have them. It is
// JSON on its way.
type Claim struct {
	By     metadata.NodeID `json:"by"`
	Birth  uint64          `json:"birth"` // of that node's fill; what an earlier one claimed is void
	Pieces []PieceID       `json:"pieces"`
}

// Landing is what has become of pieces that were claimed.
type Landing struct {
	By     metadata.NodeID `json:"by"`
	Birth  uint64          `json:"birth"`
	Pieces []PieceID       `json:"pieces"`
	// Sums has the xxh3-128 of each piece that is there; that of one that could
	// not be brought is empty.
	Sums [][]byte `json:"sums"`
}

// PieceID names a piece: an inode, and the number of a chunk.
type PieceID [2]uint64

func idOf(p piece) PieceID { return PieceID{uint64(p.ino), uint64(p.chunk)} }

func (id PieceID) piece() piece { return piece{metadata.Ino(id[0]), uint32(id[1])} }

// errReleased ends a flight whose claim was given up: the piece is nobody's again.
var errReleased = errors.New("released")

// claimTime is how long somebody waits here for a piece that another node has
// claimed, before it is fetched all the same.
const claimTime = 2 * time.Minute

// Claim grants those of the pieces that are neither here nor on their way nor displaced, and have room.
func (f *Fill) Claim(c Claim) []bool {
	fits := f.fits(c.Pieces)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.births[c.By] != c.Birth {
		f.releaseLocked(func(by metadata.NodeID) bool { return by == c.By })
		f.births[c.By] = c.Birth
	}
	granted := make([]bool, len(c.Pieces))
	for i, id := range c.Pieces {
		p := id.piece()
		if f.closed || f.flights[p] != nil || f.have.has(p) || f.displaced.has(p) || !fits(i) {
			continue
		}
		f.flights[p] = &flight{done: make(chan struct{}), claimed: true, by: c.By, birth: c.Birth}
		granted[i] = true
	}
	return granted
}

// Landed takes note of what was brought.
func (f *Fill) Landed(l Landing) error {
	if len(l.Sums) != len(l.Pieces) {
		return fmt.Errorf("%d sums of %d pieces: %w", len(l.Sums), len(l.Pieces), syscall.EINVAL)
	}
	var all []arrival
	for i, id := range l.Pieces {
		p := id.piece()
		fl := f.claimed(p, l.By, l.Birth)
		if fl == nil {
			continue // was given up
		}
		a, err := f.arrival(p, l.Sums[i])
		if err != nil {
			f.land(p, fl, err)
			continue
		}
		a.fl = fl
		all = append(all, a)
	}
	return f.arrive(all)
}

// landedHere is Landed for what this node itself has brought.
func (f *Fill) landedHere(ps []*parcel) error {
	var all []arrival
	for _, x := range ps {
		fl := f.claimed(x.piece, f.cfg.Self, f.birth)
		switch {
		case fl == nil: // was given up
		case !x.there:
			f.land(x.piece, fl, errReleased)
		default:
			all = append(all, arrival{piece: x.piece, sum: x.sum.Sum128(), n: x.n, fl: fl})
		}
	}
	return f.arrive(all)
}

// claimed is the flight of a piece that a fill has claimed; nil if it has not, or
// does not have it any more.
func (f *Fill) claimed(p piece, by metadata.NodeID, birth uint64) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if fl := f.flights[p]; fl != nil && fl.claimed && fl.by == by && fl.birth == birth {
		return fl
	}
	return nil
}

// arrive takes note of pieces that are here, and lets go who waits for them.
func (f *Fill) arrive(all []arrival) error {
	if len(all) == 0 {
		return nil
	}
	err := f.journal.addAll(all)
	for _, a := range all {
		if err == nil {
			f.got(a.piece, a.n)
		}
		f.land(a.piece, a.fl, err)
	}
	return nil
}

// arrival is a piece of which the journal is to say that it is here.
type arrival struct {
	piece
	sum [16]byte
	n   int64 // bytes
	fl  *flight
}

func (f *Fill) arrival(p piece, sum []byte) (arrival, error) {
	if len(sum) == 0 {
		return arrival{}, errReleased
	}
	_, a, err := f.cfg.Files.Origin(p.ino)
	if err != nil {
		return arrival{}, err
	}
	m, _ := f.cfg.Watch()
	s := spreadOf(m, a)
	if len(sum) != 16 || len(s.order) == 0 || p.chunk >= s.pieces() {
		return arrival{}, fmt.Errorf("inode %v has no piece %d with a sum of %d bytes: %w", p.ino, p.chunk, len(sum), errReleased)
	}
	_, n, _ := s.at(p.chunk, f.cfg.Self)
	return arrival{piece: p, sum: [16]byte(sum), n: n}, nil
}

// release gives up what the nodes have claimed that gone names.
func (f *Fill) release(gone func(by metadata.NodeID) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.releaseLocked(gone)
}

func (f *Fill) releaseLocked(gone func(by metadata.NodeID) bool) {
	for p, fl := range f.flights {
		if fl.claimed && gone(fl.by) {
			delete(f.flights, p)
			fl.err = errReleased
			close(fl.done)
		}
	}
}

// watchClaims gives up what lost nodes have claimed, until ctx ends.
func (f *Fill) watchClaims(ctx context.Context) {
	for {
		m, changed := f.cfg.Watch()
		f.release(func(by metadata.NodeID) bool {
			n, ok := m.Node(by)
			return !ok || n.State == cluster.Down
		})
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}
