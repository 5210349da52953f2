package fill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/datapath"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein"
)

// Peers reaches the fills of the same dataset on the other nodes.
type Peers interface {
	// Offer sends an offer to a node. It waits until the node knows the dataset.
	Offer(ctx context.Context, to metadata.NodeID, c Offer) (granted []bool, err error)
	// Put writes all of p to the object of ino on a node, at offset off.
	Put(ctx context.Context, to metadata.NodeID, ino metadata.Ino, p []byte, off int64) error
	// PutAll is Target.PutAll on a node.
	PutAll(ctx context.Context, to metadata.NodeID, ps []datapath.PiecePut) (errs []error, err error)
	// Complete reports to a node the result of an offer that it granted.
	Complete(ctx context.Context, to metadata.NodeID, l Completion) error
}

// Offer is a node's offer to fetch pieces for their owner (work stealing). It is sent as JSON.
type Offer struct {
	By          metadata.NodeID `json:"by"`
	Incarnation uint64          `json:"incarnation"` // of that node's fill; offers of earlier incarnations are void
	Pieces      []PieceID       `json:"pieces"`
}

// Completion is the result of an Offer.
type Completion struct {
	By          metadata.NodeID `json:"by"`
	Incarnation uint64          `json:"incarnation"`
	Pieces      []PieceID       `json:"pieces"`
	// Sums holds the xxh3-128 of each stored piece, and is empty for a piece that could not be fetched.
	Sums [][]byte `json:"sums"`
}

// errWithdrawn ends a flight whose offer was withdrawn: nothing fetches the piece any more.
var errWithdrawn = errors.New("offer withdrawn")

// offerTimeout bounds the wait for a piece that another node offered to fetch. After it, the owner fetches the piece.
const offerTimeout = 2 * time.Minute

// Accept grants pieces that are not present, not in flight, have no replica here, have not overflowed, and fit. This
// node itself fetches and compares pieces that were dropped, or of which only the CRC-32C is known.
func (f *Fill) Accept(c Offer) []bool {
	fits, comparable := f.fits(c.Pieces), comparableIn(f, c.Pieces)
	return f.flights.grant(c, func(i int) bool {
		p := c.Pieces[i]
		return !f.overflow.has(p) && !f.dropped.has(p) && comparable(i) && fits(i) && f.mayStore(p)
	})
}

// comparableIn reports, for each piece of an offer, whether its completion can be compared with the known checksum.
func comparableIn(f *Fill, ps []PieceID) func(i int) bool {
	if !f.cfg.Origins.Staged {
		return func(int) bool { return true }
	}
	ok := make([]bool, len(ps))
	for i, p := range ps {
		want, err := expected(f, p)
		ok[i] = err == nil && !stagein.IsCRC(want)
	}
	return func(i int) bool { return ok[i] }
}

// mayStore reports whether a piece may be stored here without Copy.
func (f *Fill) mayStore(p PieceID) bool { return f.cfg.MayStore == nil || f.cfg.MayStore(p) }

// Complete records the result of an Offer.
func (f *Fill) Complete(l Completion) error {
	if len(l.Sums) != len(l.Pieces) {
		return fmt.Errorf("%d sums of %d pieces: %w", len(l.Sums), len(l.Pieces), syscall.EINVAL)
	}
	var all []stored
	for i, p := range l.Pieces {
		fl := f.flights.offered(p, l.By, l.Incarnation)
		if fl == nil {
			continue // the offer was withdrawn
		}
		a, err := f.resultOf(p, l.Sums[i])
		if err != nil {
			f.finish(p, fl, err)
			continue
		}
		a.fl = fl
		all = append(all, a)
	}
	return f.commit(all)
}

// completeLocal is Complete for pieces that this node itself fetched.
func (f *Fill) completeLocal(ps []*item) error {
	var all []stored
	for _, x := range ps {
		fl := f.flights.offered(x.PieceID, f.cfg.Self, f.incarnation)
		switch {
		case fl == nil: // the offer was withdrawn
		case !x.stored:
			f.finish(x.PieceID, fl, errWithdrawn)
		default:
			all = append(all, stored{PieceID: x.PieceID, sum: x.sum.Sum128(), n: x.n, fl: fl})
		}
	}
	return f.commit(all)
}

// commit records pieces as present and ends their flights. It withdraws changed pieces: they are refetched here.
func (f *Fill) commit(all []stored) error {
	all = slices.DeleteFunc(all, func(a stored) bool {
		err := compareSource(f, a.PieceID, a.sum, nil)
		if err != nil {
			f.finish(a.PieceID, a.fl, errWithdrawn)
		}
		return err != nil
	})
	if len(all) == 0 {
		return nil
	}
	err := f.journal.addAll(all)
	for _, a := range all {
		if err == nil {
			f.markPresent(a.PieceID, a.n)
		}
		f.finish(a.PieceID, a.fl, err)
	}
	return err
}

// stored is a piece that the journal is about to record as present.
type stored struct {
	PieceID
	sum [16]byte
	n   int64 // bytes
	fl  *flight
}

func (f *Fill) resultOf(p PieceID, sum []byte) (stored, error) {
	if len(sum) == 0 {
		return stored{}, errWithdrawn
	}
	_, a, err := f.cfg.Files.Origin(p.Ino)
	if err != nil {
		return stored{}, err
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	if len(sum) != 16 || len(s.order) == 0 || p.Chunk >= s.pieces() {
		return stored{}, fmt.Errorf("inode %v has no piece %d with a sum of %d bytes: %w", p.Ino, p.Chunk, len(sum), errWithdrawn)
	}
	_, n, _ := s.at(p.Chunk, f.cfg.Self)
	return stored{PieceID: p, sum: [16]byte(sum), n: n}, nil
}

// watchOffers withdraws the offers of lost nodes, until ctx ends.
func (f *Fill) watchOffers(ctx context.Context) {
	for {
		m, changed := f.cfg.Watch()
		f.flights.withdraw(func(by metadata.NodeID) bool {
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
