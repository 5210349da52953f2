package mirror

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Batch is changes that are made at once.
type Batch struct {
	Data []byte
	// seq is that of the message that has it in this stream; 0 is none yet. sent: the partner has it.
	seq             uint64
	sent, may, done bool
}

// Message is one step of a stream.
type Message struct {
	Seat     metadata.Epoch // of the sender (cluster.Node.Seat); 0 is the home itself
	Gen      uint64         // of the stream; later streams have greater ones
	Seq      uint64         // counts the messages of the stream from 1
	Complete bool           // with this message the copy has all
	Batches  []*Batch
}

// Home is the sending half, of a home or of the node that stands in for it.
type Home struct {
	self     metadata.NodeID // the home
	seat     metadata.Epoch  // Since of the partner that stands in for it; 0 is the home itself
	bound    cluster.Partner
	to       cluster.Partner // of the stream; Since 0 is none
	gen, seq uint64
	copied   bool // the records are sent
	complete bool // the partner has all
	once     bool // a partner has had all that is here since the daemon began
	replaced bool
	behind   int      // bytes of changes since the stream began that did not wait
	pending  []*Batch // in order: those that are not done, or that the stream has yet to bring
}

// NewHome returns the Home of a node, or of its seat, that is bound to a partner since an earlier run; Since 0 is none.
func NewHome(self metadata.NodeID, seat metadata.Epoch, bound cluster.Partner) *Home {
	return &Home{self: self, seat: seat, bound: bound}
}

// Wiped reports whether the home of a node has lost its records, if recorded says whether its disk has a record of a
// partner, or that there was none. m is the map of a moment after the start of the daemon. The partner must stand in
// for the home at once, which serves nothing and begins no stream.
func Wiped(m cluster.Map, self metadata.NodeID, recorded bool) bool {
	n, _ := m.Node(self)
	return !recorded && n.Partner.Since > 0
}

// Add adds a batch, whose owner may apply it when May says so.
func (h *Home) Add(data []byte) *Batch {
	b := &Batch{Data: data, may: h.free()}
	if b.may && h.to.Since > 0 {
		h.behind += len(data)
	}
	h.pending = append(h.pending, b)
	return b
}

// free reports whether a batch may be applied that no partner has: the home is not bound, and the records are yet to
// be sent. What is changed meanwhile follows them, and no later change is made before the partner has that too.
func (h *Home) free() bool {
	return h.bound.Since == 0 && (h.to.Since == 0 || !h.copied && h.behind < maxBehind) && !h.replaced
}

// maxBehind is the most bytes of changes that are made, and kept in memory, while records are sent.
const maxBehind = 64 << 20

// May reports whether the batch may be applied.
func (h *Home) May(b *Batch) bool { return b.may }

// Done says that the owner of a batch has applied it, or will not.
func (h *Home) Done(b *Batch) {
	b.done = true
	h.forget()
}

// forget forgets the batches that nothing needs any more. One that was applied after a stream has begun is not among
// the records, so that it is sent although its owner did not wait.
func (h *Home) forget() {
	h.pending = slices.DeleteFunc(h.pending, func(b *Batch) bool { return b.done && (b.sent || h.to.Since == 0) })
}

// Bound is the partner that may be recorded; Since 0 is none.
func (h *Home) Bound() cluster.Partner { return h.bound }

// To is the partner of the stream; Since 0 is none.
func (h *Home) To() cluster.Partner { return h.to }

// Replaced reports whether the partner stands in for the home.
func (h *Home) Replaced() bool { return h.replaced }

// Serves reports whether the home may answer by the map m, which its node has.
func (h *Home) Serves(m cluster.Map) bool { return !h.replaced && Holds(m, h.self, h.seat) }

// Holds reports whether no later seat than this one of the home id is in the map m.
func Holds(m cluster.Map, id metadata.NodeID, seat metadata.Epoch) bool {
	n, _ := m.Node(id)
	return n.Seat().Since <= seat
}

// Complete reports whether the partner has a complete copy.
func (h *Home) Complete() bool { return h.complete }

// InStep reports whether a partner that takes over has no change of an earlier daemon that is not here.
func (h *Home) InStep() bool { return h.bound.Since == 0 || h.once }

// See takes a map into account, and reports whether the home is no longer bound. Its caller forgets that on the
// disk, in its own time: a map never allows the old partner again.
func (h *Home) See(m cluster.Map) (unbound bool) {
	if m.Epoch < max(h.bound.Since, h.to.Since, h.seat) {
		return false // of before
	}
	if !Holds(m, h.self, h.seat) {
		h.Replace()
		return false
	}
	if h.to.Since > 0 && !m.ServesSince(h.to.Node, h.to.Since) {
		h.to, h.complete = cluster.Partner{}, false
	}
	if h.bound.Since > 0 && !m.ServesSince(h.bound.Node, h.bound.Since) {
		h.bound, unbound = cluster.Partner{}, true
	}
	h.release()
	return unbound
}

// release lets all batches be applied if no partner needs them.
func (h *Home) release() {
	if h.free() {
		for _, b := range h.pending {
			b.may = true
		}
	}
	h.forget()
}

// Replace ends the home: no batch may be applied any more.
func (h *Home) Replace() { h.replaced, h.to = true, cluster.Partner{} }

// Begin begins a stream to the bound partner, or to one that m has and that is not full, and reports whether there is one. Its gen is
// greater than any before. The records must be read after it.
func (h *Home) Begin(m cluster.Map, gen uint64, full ...metadata.NodeID) bool {
	p, ok := h.bound, h.bound.Since > 0
	if !ok {
		p, ok = m.NextPartner(h.self, full...)
	}
	if n, _ := m.Node(h.self); !ok || h.replaced || n.Seat().Since != h.seat {
		return false
	}
	h.to, h.gen, h.seq, h.copied, h.complete, h.behind = p, gen, 0, false, false, 0
	for _, b := range h.pending {
		b.seq, b.sent = 0, false // it may not be among the records
	}
	return true
}

// Record returns the next message, with some of the records. The one before was acknowledged.
func (h *Home) Record() Message {
	h.seq++
	return Message{Seat: h.seat, Gen: h.gen, Seq: h.seq}
}

// Copied says that all records were acknowledged.
func (h *Home) Copied() { h.copied = true }

// Next returns the next message with changes; false if there is nothing to send. The one before was acknowledged. It
// takes batches up to about most bytes; once one is left, also all later ones are.
func (h *Home) Next(most int) (Message, bool) {
	if h.to.Since == 0 || !h.copied {
		return Message{}, false
	}
	m := Message{Seat: h.seat, Gen: h.gen, Seq: h.seq + 1, Complete: true}
	size := 0
	for _, b := range h.pending {
		if b.seq > 0 {
			continue
		}
		if size += len(b.Data); size > most && len(m.Batches) > 0 {
			m.Complete = m.Complete && !b.may // its owner did not wait
			continue
		}
		b.seq = m.Seq
		m.Batches = append(m.Batches, b)
	}
	if len(m.Batches) == 0 && h.complete {
		return Message{}, false
	}
	h.seq = m.Seq
	return m, true
}

// Probe returns a message without changes, to find out whether the partner still has its complete copy. All messages
// before were acknowledged.
func (h *Home) Probe() (Message, bool) {
	if h.to.Since == 0 || !h.complete {
		return Message{}, false
	}
	h.seq++
	return Message{Seat: h.seat, Gen: h.gen, Seq: h.seq, Complete: true}, true
}

// Acked says that the partner has accepted m.
func (h *Home) Acked(m Message) {
	if h.to.Since == 0 || m.Gen != h.gen {
		return
	}
	for _, b := range m.Batches {
		b.sent = true
	}
	h.complete = h.complete || m.Complete
	h.once = h.once || h.complete
	for _, b := range h.pending { // until it is complete, an older copy counts, which may lack them
		b.may = b.may || b.sent && h.complete && !h.replaced
	}
	h.forget()
}

// GiveUp is Abandon, and the batches that wait for a bound partner are given up: their owners will not apply them,
// and the next stream, which brings the records without them, must not bring them either.
func (h *Home) GiveUp() {
	if h.bound.Since > 0 {
		h.pending = slices.DeleteFunc(h.pending, func(b *Batch) bool { return !b.may })
	}
	h.Abandon()
}

// Release ends the need for a partner: the job is over.
func (h *Home) Release() {
	h.bound, h.to, h.complete = cluster.Partner{}, cluster.Partner{}, false
	h.release()
}

// Abandon ends a stream whose partner cannot take it. A home that is bound begins another one to it.
func (h *Home) Abandon() {
	h.to, h.complete = cluster.Partner{}, false
	h.release()
}

// Bind binds the home to the partner of the stream, which has all. The caller has it on the disk already.
func (h *Home) Bind(p cluster.Partner) bool {
	if !h.complete || h.to != p || h.replaced {
		return false
	}
	h.bound = p
	return true
}
