package mirror

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// Batch is a group of changes that are made in one step.
type Batch struct {
	Data []byte
	// seq is the number of its message in this stream; 0 is none yet. sent: the partner has the batch.
	seq             uint64
	sent, may, done bool
}

// Message is one step of a stream.
type Message struct {
	Seat     metadata.Epoch // of the sender (cluster.Node.Seat); 0 is the home itself
	Gen      uint64         // number of the stream; later streams have greater ones
	Seq      uint64         // counts the messages of the stream from 1
	Complete bool           // after this message the copy is complete
	Batches  []*Batch
}

// Home is the sending half: a home, or the node that stands in for it.
type Home struct {
	self     metadata.NodeID // the home
	seat     metadata.Epoch  // Since of the partner that stands in for the home; 0 is the home itself
	bound    cluster.Partner
	to       cluster.Partner // partner of the stream; Since 0 is none
	gen, seq uint64
	copied   bool // all records were sent
	complete bool // the partner's copy is complete
	once     bool // a partner has had a complete copy since the daemon began
	replaced bool
	behind   int      // bytes of changes since the stream began that did not wait for the partner
	pending  []*Batch // in order: batches that are not done, or not yet sent in the stream
}

// NewHome returns the Home of a node, or of its seat, bound to the partner of an earlier run; Since 0 is none.
func NewHome(self metadata.NodeID, seat metadata.Epoch, bound cluster.Partner) *Home {
	return &Home{self: self, seat: seat, bound: bound}
}

// Wiped reports whether the home of a node has lost its records. recorded: its disk records a partner, or that there
// was none; m is a map received after the daemon started. The partner of a wiped home must stand in for it at once; the
// home serves nothing and begins no stream.
func Wiped(m cluster.Map, self metadata.NodeID, recorded bool) bool {
	n, _ := m.Node(self)
	return !recorded && n.Partner.Since > 0
}

// Add adds a batch, which its owner may apply once May allows it.
func (h *Home) Add(data []byte) *Batch {
	b := &Batch{Data: data, may: h.free()}
	if b.may && h.to.Since > 0 {
		h.behind += len(data)
	}
	h.pending = append(h.pending, b)
	return b
}

// free reports whether a batch may be applied before a partner has it: the home is not bound, and the records are still
// being sent. Such changes follow the records, and no later change is made before the partner has them.
func (h *Home) free() bool {
	return h.bound.Since == 0 && (h.to.Since == 0 || !h.copied && h.behind < maxBehind) && !h.replaced
}

// maxBehind limits the bytes of changes that are made, and kept in memory, while records are sent.
const maxBehind = 64 << 20

// May reports whether the batch may be applied.
func (h *Home) May(b *Batch) bool { return b.may }

// Done records that the owner of a batch has applied it, or never will.
func (h *Home) Done(b *Batch) {
	b.done = true
	h.forget()
}

// forget drops the batches that are no longer needed. A batch that was applied after a stream began is not among the
// records, so it is sent although its owner did not wait.
func (h *Home) forget() {
	h.pending = slices.DeleteFunc(h.pending, func(b *Batch) bool { return b.done && (b.sent || h.to.Since == 0) })
}

// Bound returns the partner that may be recorded; Since 0 is none.
func (h *Home) Bound() cluster.Partner { return h.bound }

// To returns the partner of the stream; Since 0 is none.
func (h *Home) To() cluster.Partner { return h.to }

// Replaced reports whether the partner stands in for the home.
func (h *Home) Replaced() bool { return h.replaced }

// Serves reports whether the home may answer, given the map m of its node.
func (h *Home) Serves(m cluster.Map) bool { return !h.replaced && Holds(m, h.self, h.seat) }

// Holds reports whether the map m has no later seat of the home id than this one.
func Holds(m cluster.Map, id metadata.NodeID, seat metadata.Epoch) bool {
	n, _ := m.Node(id)
	return n.Seat().Since <= seat
}

// Complete reports whether the partner has a complete copy.
func (h *Home) Complete() bool { return h.complete }

// InStep reports whether a partner that takes over has no change from an earlier daemon that this home lacks.
func (h *Home) InStep() bool { return h.bound.Since == 0 || h.once }

// See applies a map, and reports whether the home is no longer bound. Its caller later removes the record on the disk,
// which is not urgent: a map never allows the old partner again.
func (h *Home) See(m cluster.Map) (unbound bool) {
	if m.Epoch < max(h.bound.Since, h.to.Since, h.seat) {
		return false // an older map
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

// release allows all batches to be applied if no partner needs them.
func (h *Home) release() {
	if h.free() {
		for _, b := range h.pending {
			b.may = true
		}
	}
	h.forget()
}

// Replace ends the home: no batch may be applied afterwards.
func (h *Home) Replace() { h.replaced, h.to = true, cluster.Partner{} }

// Begin begins a stream to the bound partner, or to one that m has and that is not full, and reports whether there is
// one. gen must be greater than any before. The records must be read after Begin.
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
		b.seq, b.sent = 0, false // the batch may be missing in the records
	}
	return true
}

// Record returns the next message, for a part of the records. The previous one must be acknowledged.
func (h *Home) Record() Message {
	h.seq++
	return Message{Seat: h.seat, Gen: h.gen, Seq: h.seq}
}

// Copied records that all records were acknowledged.
func (h *Home) Copied() { h.copied = true }

// Next returns the next message with changes; false if there is none to send. The previous one must be acknowledged. It
// takes batches up to about most bytes, and leaves the rest.
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
			m.Complete = m.Complete && !b.may // the owner of b did not wait
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

// Probe returns a message without changes, to check that the partner still has its complete copy. All previous messages
// must be acknowledged.
func (h *Home) Probe() (Message, bool) {
	if h.to.Since == 0 || !h.complete {
		return Message{}, false
	}
	h.seq++
	return Message{Seat: h.seat, Gen: h.gen, Seq: h.seq, Complete: true}, true
}

// Acked records that the partner has accepted m.
func (h *Home) Acked(m Message) {
	if h.to.Since == 0 || m.Gen != h.gen {
		return
	}
	for _, b := range m.Batches {
		b.sent = true
	}
	h.complete = h.complete || m.Complete
	h.once = h.once || h.complete
	for _, b := range h.pending { // an incomplete copy does not count, and an older one may lack them
		b.may = b.may || b.sent && h.complete && !h.replaced
	}
	h.forget()
}

// GiveUp is Abandon, but also drops the batches that wait for a bound partner: their owners will not apply them, and
// the next stream, whose records lack them, must not send them either.
func (h *Home) GiveUp() {
	if h.bound.Since > 0 {
		h.pending = slices.DeleteFunc(h.pending, func(b *Batch) bool { return !b.may })
	}
	h.Abandon()
}

// Release removes the need for a partner at the end of the job.
func (h *Home) Release() {
	h.bound, h.to, h.complete = cluster.Partner{}, cluster.Partner{}, false
	h.release()
}

// Abandon ends a stream that its partner cannot take. A bound home then begins another stream to the partner.
func (h *Home) Abandon() {
	h.to, h.complete = cluster.Partner{}, false
	h.release()
}

// Bind binds the home to the partner of the stream, whose copy is complete. The caller has recorded it on the disk.
func (h *Home) Bind(p cluster.Partner) bool {
	if !h.complete || h.to != p || h.replaced {
		return false
	}
	h.bound = p
	return true
}
