package fill

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// flights tracks the pieces being fetched: one fetch serves all readers of a piece (single-flight). A piece is present,
// in flight, or neither.
type flights struct {
	present *pieceSet
	wg      sync.WaitGroup // for fetches that no caller waits for

	mu           sync.Mutex
	all          map[PieceID]*flight        // guarded by mu
	begins       int64                      // guarded by mu; flights so far that started without a demand
	waits        int                        // guarded by mu; waiting readers
	load         load                       // guarded by mu; of the readers that wait for this node's pieces
	early        int                        // guarded by mu; pieces demanded before the fill order reached them
	most         int                        // guarded by mu; while early is at most this, readers follow the order
	idle         chan struct{}              // guarded by mu; closed when waits is 0, and has been for demandGap if readers mostly wait
	closed       bool                       // guarded by mu
	incarnations map[metadata.NodeID]uint64 // guarded by mu; of the fills that have made an offer
}

// flight is the fetch of a piece, by this node or by one that offered to.
type flight struct {
	done        chan struct{} // closed when the flight has ended
	err         error         // written before done is closed
	offered     bool          // fetched by the reader of its run, on this node or another
	by          metadata.NodeID
	incarnation uint64
	wanted      chan struct{} // closed at the first demand; nil if a demand started the flight
	asked       bool          // wanted is closed; guarded by mu of flights
	order       int64         // start order among the flights that began without a demand
}

func newFlights(present *pieceSet) *flights {
	return &flights{present: present, all: make(map[PieceID]*flight), idle: closedChan(), incarnations: make(map[metadata.NodeID]uint64)}
}

func closedChan() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}

// demand returns the flight of a piece that a reader waits for, or nil if the piece is present. If mine is true, the
// caller must fetch the piece, then call land and wg.Done.
func (t *flights) demand(p PieceID) (fl *flight, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.present.has(p) {
		return nil, false
	}
	if fl := t.all[p]; fl != nil {
		if fl.wanted != nil && !fl.asked {
			fl.asked = true
			close(fl.wanted)
		}
		return fl, false
	}
	fl = &flight{done: make(chan struct{})}
	if t.closed {
		fl.err = fmt.Errorf("inode %v: the daemon stops: %w", p.Ino, syscall.ESHUTDOWN)
		close(fl.done)
		return fl, false
	}
	t.all[p] = fl
	t.early++
	t.wg.Add(1)
	return fl, true
}

// begin records that the fill order starts, and how many early demands readers that follow the order may cause.
func (t *flights) begin(most int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.early, t.most = 0, most
}

// reached records that the fill order has reached a piece.
func (t *flights) reached(p PieceID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.early > 0 && (t.all[p] != nil || t.present.has(p)) {
		t.early--
	}
}

// join returns the flight of a piece, or nil if the piece is present. If mine is true, the caller must fetch it.
func (t *flights) join(p PieceID) (fl *flight, mine bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.present.has(p) {
		return nil, false
	}
	if fl := t.all[p]; fl != nil {
		return fl, false
	}
	fl = &flight{done: make(chan struct{}), wanted: make(chan struct{}), order: t.begins}
	t.begins++
	t.all[p] = fl
	return fl, true
}

// land ends a flight unless it was withdrawn in the meantime. It calls note before it wakes the waiters.
func (t *flights) land(p PieceID, fl *flight, err error, note func(error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.all[p] != fl {
		return
	}
	delete(t.all, p)
	fl.err = err
	note(err)
	close(fl.done)
}

// of returns the flight of a piece, or nil if there is none.
func (t *flights) of(p PieceID) *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all[p]
}

// missing reports whether a piece is neither present nor being fetched.
func (t *flights) missing(p PieceID) bool { return t.of(p) == nil && !t.present.has(p) }

// grant grants the offered pieces that are not present, have no flight, and that takes accepts.
func (t *flights) grant(c Offer, takes func(i int) bool) []bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.incarnations[c.By] != c.Incarnation {
		t.withdrawLocked(func(by metadata.NodeID) bool { return by == c.By })
		t.incarnations[c.By] = c.Incarnation
	}
	granted := make([]bool, len(c.Pieces))
	for i, p := range c.Pieces {
		if t.closed || t.all[p] != nil || t.present.has(p) || !takes(i) {
			continue
		}
		t.all[p] = &flight{done: make(chan struct{}), offered: true, by: c.By, incarnation: c.Incarnation}
		granted[i] = true
	}
	return granted
}

// offered returns the flight of a piece that a fill offered to fetch, or nil if the offer no longer stands.
func (t *flights) offered(p PieceID, by metadata.NodeID, incarnation uint64) *flight {
	if fl := t.of(p); fl != nil && fl.offered && fl.by == by && fl.incarnation == incarnation {
		return fl
	}
	return nil
}

// withdraw withdraws the offers of the nodes for which gone returns true.
func (t *flights) withdraw(gone func(by metadata.NodeID) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.withdrawLocked(gone)
}

func (t *flights) withdrawLocked(gone func(by metadata.NodeID) bool) {
	for p, fl := range t.all {
		if fl.offered && gone(fl.by) {
			delete(t.all, p)
			fl.err = errWithdrawn
			close(fl.done)
		}
	}
}

// enter registers a background fetch, which must call wg.Done. It returns false if the fill is closed.
func (t *flights) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		t.wg.Add(1)
	}
	return !t.closed
}

// close refuses new flights and withdraws all offers.
func (t *flights) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.withdrawLocked(func(metadata.NodeID) bool { return true })
}

// await waits until a piece is present. begin starts the fetch unless one is in flight. If the node that offered to
// fetch the piece withdraws or times out, await calls begin again, so this node fetches it.
func (f *Fill) await(ctx context.Context, p PieceID, begin func(PieceID) *flight) error {
	for {
		fl := begin(p)
		if fl == nil {
			return nil
		}
		var late <-chan time.Time
		if fl.offered {
			late = time.After(offerTimeout)
		}
		select {
		case <-fl.done:
		case <-late:
			f.finish(p, fl, errWithdrawn)
		case <-ctx.Done():
			return ctx.Err()
		}
		if !errors.Is(fl.err, errWithdrawn) {
			return fl.err
		}
	}
}

// ask starts the fetch of a piece on demand and returns its flight, or nil if the piece is present.
func (f *Fill) ask(p PieceID) *flight {
	fl, mine := f.flights.demand(p)
	if mine {
		go f.fetchNow(p, fl)
	}
	return fl
}

// fetchNow fetches a piece on demand.
func (f *Fill) fetchNow(p PieceID, fl *flight) {
	defer f.flights.wg.Done()
	f.demandSlots <- struct{}{}
	f.demand.Add(1)
	f.finish(p, fl, f.fetchPiece(p, fl))
	<-f.demandSlots
}

// finish ends a flight and keeps its error.
func (f *Fill) finish(p PieceID, fl *flight, err error) {
	f.flights.land(p, fl, err, func(err error) {
		if err == nil || f.ctx.Err() != nil || errors.Is(err, errWithdrawn) || errors.Is(err, ErrOverflow) {
			return
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lack = err
		if store := (*storeError)(nil); errors.As(err, &store) {
			f.err = err
		}
	})
}

// fetch fetches a piece in its turn of the fill order, unless a flight exists, for which it waits.
func (f *Fill) fetch(p PieceID) error {
	return f.await(f.ctx, p, func(p PieceID) *flight {
		fl, mine := f.flights.join(p)
		if mine {
			f.finish(p, fl, f.fetchPiece(p, fl))
		}
		return fl
	})
}
