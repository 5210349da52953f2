package partner

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/datapath/retry"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/copies"
	"github.com/bivouacfs/bivouac/metadata/mirror"
	"github.com/bivouacfs/bivouac/metadata/pebblestore"
	"github.com/bivouacfs/bivouac/metadata/raftstore"
)

// Records is the store of this home; *pebblestore.Store implements it.
type Records interface {
	SetMirror(pebblestore.Mirror)
	Partner() ([]byte, error)
	SetPartner([]byte) error
	AllRecords(size int, fn func(changes []byte) error) error
}

// Sender keeps a copy of a home's records on its partner, for this node's home or one that it stands in for.
type Sender struct {
	node    node.Node
	id      metadata.NodeID // the home
	seat    metadata.Epoch  // this node's seat (cluster.Node.Seat); 0 if this node is the home itself
	number  metadata.Run    // of this daemon; numbers the streams
	peer    func(metadata.NodeID) rpc.Caller
	records Records
	lease   *copies.Lease
	log     *logrus.Entry
	// patience is how long one message is repeated.
	patience time.Duration
	kick     chan struct{}             // a batch was added; one token is enough
	recheck  chan struct{}             // the home was bound; one token is enough
	guarded  atomic.Bool               // another node may stand in for this home
	blank    atomic.Bool               // the disk does not say whether there is a partner: the home may have been wiped
	full     atomic.Pointer[time.Time] // when the partner last reported a full disk

	mu    sync.Mutex
	turn  *sync.Cond                    // of mu: a batch may be applied, or never will be
	home  *mirror.Home                  // under mu
	gen   uint64                        // under mu; number of the last stream
	on    bool                          // under mu: the records have a mirror
	ended bool                          // under mu
	left  bool                          // under mu; the job has ended here
	stall int                           // under mu: how often changes were failed
	avoid map[metadata.NodeID]time.Time // under mu: nodes without room for the copy, and when they reported that
}

const (
	chunk       = 256 << 10             // bytes of one message
	maxBatch    = wire.MaxFrame - 4<<10 // bytes of one batch; the rest of a frame is for the other fields
	answerTime  = 3 * time.Second       // for one message
	firstPause  = 5 * time.Millisecond
	longestWait = 500 * time.Millisecond
)

// newSender returns the Sender of a home, or of this node's seat. The home may call it while it is being opened.
func newSender(cfg *Config, id metadata.NodeID, seat metadata.Epoch) *Sender {
	s := &Sender{
		node: cfg.Node, number: cfg.Run, id: id, seat: seat, peer: cfg.Peer, lease: cfg.Lease, patience: cfg.Patience,
		log: cfg.Node.Log().WithField("part", "partner").WithField("home", id), kick: make(chan struct{}, 1), recheck: make(chan struct{}, 1),
	}
	s.turn, s.avoid = sync.NewCond(&s.mu), make(map[metadata.NodeID]time.Time)
	return s
}

// open sets the records. The home is bound if an earlier daemon has left it bound.
func (s *Sender) open(records Records) error {
	s.records = records
	b, err := s.records.Partner()
	if err != nil {
		return err
	}
	var bound cluster.Partner
	if len(b) == 10 {
		bound = cluster.Partner{Node: metadata.NodeID(binary.BigEndian.Uint16(b)), Since: metadata.Epoch(binary.BigEndian.Uint64(b[2:]))}
	}
	s.home = mirror.NewHome(s.id, s.seat, bound)
	s.blank.Store(len(b) == 0 && s.seat == 0)
	s.guarded.Store(s.blank.Load() || bound.Since > 0)
	if bound.Since > 0 {
		s.turnOn()
	}
	return nil
}

// turnOn mirrors the changes of the records from now on.
func (s *Sender) turnOn() {
	s.mu.Lock()
	was := s.on
	s.on = true
	s.mu.Unlock()
	if !was {
		s.records.SetMirror(s.add)
	}
}

// bind records the partner on the disk; Since 0 means none.
func (s *Sender) bind(p cluster.Partner) error {
	b := binary.BigEndian.AppendUint16(nil, uint16(p.Node))
	return s.records.SetPartner(binary.BigEndian.AppendUint64(b, uint64(p.Since)))
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// add implements pebblestore.Mirror.
func (s *Sender) add(changes []byte) (done func(), err error) {
	if len(changes) > maxBatch { // it would always fail, and block all later changes
		return nil, fmt.Errorf("one change of %d bytes for the partner, of at most %d: %w", len(changes), maxBatch, syscall.EMSGSIZE)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b, stall := s.home.Add(bytes.Clone(changes)), s.stall
	wake(s.kick)
	for !s.home.May(b) {
		switch {
		case s.home.Replaced():
			err = errReplaced
		case s.ended:
			err = fmt.Errorf("%w: the daemon ends: %w", metadata.ErrUnknownOutcome, syscall.ESHUTDOWN)
		case s.stall != stall:
			err = fmt.Errorf("%w: the partner of this node does not answer: %w", metadata.ErrUnknownOutcome, syscall.ETIMEDOUT)
		default:
			s.turn.Wait()
			continue
		}
		s.home.Done(b)
		return nil, err
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.home.Done(b)
	}, nil
}

// errReplaced is the error of a change that the home could not complete.
var errReplaced = fmt.Errorf("%w: another node has taken over the names: %w", metadata.ErrUnknownOutcome, syscall.EAGAIN)

// errMoved is retried by clients: they find the stand-in in the next view.
var errMoved = fmt.Errorf("another node has taken over the names: %w: %w", metadata.ErrMoved, syscall.EAGAIN)

// Replaced reports whether another node stands in for the home now.
func (s *Sender) Replaced() bool {
	return s.guarded.Load() && !mirror.Holds(s.node.View().Map, s.id, s.seat)
}

// Serves returns why the home must not answer now; nil if it may.
func (s *Sender) Serves() error {
	switch {
	case !s.guarded.Load():
		return nil
	case s.Replaced():
		return errMoved
	case s.blank.Load():
		return fmt.Errorf("waiting for a leader to report whether this node's records are on its partner: %w", syscall.EHOSTDOWN)
	case !s.lease.Valid(time.Now()):
		return fmt.Errorf("no leader has answered this node lately, so its partner may stand in for it: %w", syscall.EHOSTDOWN)
	}
	return nil
}

// run sends records and changes until ctx ends.
func (s *Sender) run(ctx context.Context) {
	defer s.end()
	if !s.learn(ctx) {
		s.mu.Lock()
		s.home.Replace()
		s.mu.Unlock()
		return
	}
	idle := time.NewTimer(0)
	defer idle.Stop()
	for b := retry.New(firstPause, longestWait, 0); ctx.Err() == nil; {
		v, changed := s.node.Watch()
		var again <-chan time.Time
		if err := s.work(ctx, v); err != nil {
			s.log.WithError(err).Debug("partner does not answer: trying again")
			again = time.After(b.Next())
		} else {
			b.Reset()
		}
		idle.Reset(s.patience / 4) // half of the silence after which a node is declared lost
		select {
		case <-ctx.Done():
		case <-changed:
		case <-s.kick:
		case <-again:
		case <-idle.C:
			s.probe(ctx)
		}
	}
}

// end fails all waiting changes.
func (s *Sender) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	s.turn.Broadcast()
}

// work does the work that the view v calls for.
func (s *Sender) work(ctx context.Context, v cluster.View) error {
	if v.Version == 0 {
		return nil
	}
	if v.Copied {
		s.turnOn()
	}
	s.mu.Lock()
	on := s.on
	s.mu.Unlock()
	if !on {
		return nil
	}
	if err := s.see(v); err != nil {
		return err
	}
	begun, err := s.begin(v.Map)
	if begun {
		err = s.sendRecords(ctx)
	}
	if err == nil {
		err = s.sendChanges(ctx)
	}
	if errors.Is(err, errLost) {
		wake(s.kick)
		return nil
	}
	return err
}

// see applies a view to the home.
func (s *Sender) see(v cluster.View) error {
	s.mu.Lock()
	unbound := false
	if v.Closing || s.left {
		s.home.Release()
	} else {
		unbound = s.home.See(v.Map)
	}
	s.turn.Broadcast()
	s.mu.Unlock()
	if unbound {
		s.log.Warn("the partner is lost: names have one copy until another node has them")
		return s.bind(cluster.Partner{})
	}
	return nil
}

// begin begins a stream, unless one is in progress or the node does not serve.
func (s *Sender) begin(m cluster.Map) (begun bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, _ := m.Node(s.node.Self()); s.left || s.home.To().Since > 0 || n.State != cluster.Up && s.home.Bound().Since == 0 {
		return false, nil
	}
	s.gen = max(s.gen+1, uint64(s.number))
	return s.home.Begin(m, s.gen, s.avoided()...), nil
}

// errLost means that the stream has ended.
var errLost = errors.New("the stream to the partner has ended")

// sendRecords sends all present records.
func (s *Sender) sendRecords(ctx context.Context) error {
	err := s.records.AllRecords(chunk, func(b []byte) error {
		s.mu.Lock()
		m := s.home.Record()
		s.mu.Unlock()
		return s.send(ctx, m, [][]byte{b})
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.home.Abandon()
		s.turn.Broadcast()
		return err
	}
	s.home.Copied()
	return nil
}

// sendChanges sends the waiting changes, and binds the home when the partner has all of them.
func (s *Sender) sendChanges(ctx context.Context) error {
	for {
		s.mu.Lock()
		m, ok := s.home.Next(chunk)
		s.mu.Unlock()
		if !ok {
			return nil
		}
		batches := make([][]byte, len(m.Batches))
		for i, b := range m.Batches {
			batches[i] = b.Data
		}
		if err := s.send(ctx, m, batches); err != nil {
			return err
		}
		s.mu.Lock()
		s.home.Acked(m)
		s.turn.Broadcast()
		to, due := s.home.To(), s.home.Complete() && s.home.Bound().Since == 0
		s.mu.Unlock()
		if due {
			if err := s.bindTo(to); err != nil {
				return err
			}
		}
	}
}

// bindTo binds the home to the partner of the stream. From then on, the map may record the partner.
func (s *Sender) bindTo(p cluster.Partner) error {
	if err := s.bind(p); err != nil {
		return err
	}
	s.guarded.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.home.Bind(p)
	wake(s.recheck)
	return nil
}

// send sends one message until the partner has it or the stream ends.
func (s *Sender) send(ctx context.Context, m mirror.Message, batches [][]byte) error {
	q := &wire.MirrorReq{Home: s.id, Seat: m.Seat, Gen: m.Gen, Seq: m.Seq, Complete: m.Complete, Batches: batches}
	since := time.Now()
	for b := retry.New(firstPause, longestWait, 0); ; {
		s.mu.Lock()
		to := s.home.To()
		s.mu.Unlock()
		if to.Since == 0 {
			return errLost
		}
		var r wire.MirrorResp
		once, cancel := context.WithTimeout(ctx, answerTime)
		err := s.peer(to.Node).Do(once, &rpc.Call{Op: wire.OpMirror, Body: q, Reply: &r})
		cancel()
		switch {
		case err == nil:
			if s.declined(to, r.Full, false) {
				return errLost
			}
			if s.full.Store(nil); r.Full {
				now := time.Now()
				s.full.Store(&now)
			}
			return s.judge(mirror.Verdict(r.Verdict), r.Last)
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, syscall.ENOSPC) && s.declined(to, true, true):
			return errLost
		}
		s.log.WithError(err).WithField("to", to.Node).Debug("partner has not taken a message: sending it again")
		if time.Since(since) > s.patience { // if the node were lost, the map would say so: only the link is cut
			s.giveUp(to)
			return errLost
		}
		b.Wait(ctx)
		if err := s.see(s.node.View()); err != nil {
			return err
		}
	}
}

// replace ends the home, because another node has taken it over.
func (s *Sender) replace() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.home.Replace()
	s.turn.Broadcast()
}

// giveUp fails the changes that wait for a partner that does not answer.
func (s *Sender) giveUp(to cluster.Partner) {
	s.log.WithField("to", to.Node).Warn("partner does not answer, but is not declared lost: changes of names fail until it does")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stall++
	s.home.GiveUp()
	s.turn.Broadcast()
}

// judge applies the partner's verdict.
func (s *Sender) judge(v mirror.Verdict, last uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.turn.Broadcast()
	switch v {
	case mirror.Accepted:
		return nil
	case mirror.Replaced:
		s.home.Replace()
	default:
		s.gen = max(s.gen, last)
		s.home.Abandon()
	}
	return errLost
}

// record has the map record the partner to which the home is bound, until ctx ends.
func (s *Sender) record(ctx context.Context) {
	for {
		v, changed := s.node.Watch()
		s.mu.Lock()
		p := s.home.Bound()
		s.mu.Unlock()
		n, _ := v.Map.Node(s.id)
		var again <-chan time.Time
		if p.Since > 0 && v.Version > 0 && n.Second() != p && n.Seat().Since == s.seat {
			_, err := s.node.Propose(ctx, raftstore.Command{Kind: raftstore.KindPartner, Home: s.id, Seat: s.seat, Partner: p})
			if err == nil {
				s.log.WithField("partner", p.Node).Info("another node has a copy of the names")
			}
			again = time.After(longestWait)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-s.recheck:
		case <-again:
		}
	}
}
