package mirror

import "github.com/bivouacfs/bivouac/metadata"

// Copy is the state of a partner's copy of a home. The partner stores it with the records.
type Copy struct {
	Seat     metadata.Epoch // of the sender
	Gen, Seq uint64         // of the last message; Gen 0 means no message
	Complete bool
	Sealed   metadata.Epoch // seat (cluster.Node.Seat) for which it is or was a home; 0 is none
}

// Copies has a partner's two copies of one home: the last complete one, and the one being made.
type Copies struct{ Whole, Coming Copy }

// Verdict is the answer to a message.
type Verdict uint8

// The verdicts.
const (
	Accepted Verdict = iota
	// Gap: an earlier message is missing, or the stream is not the last one. The home begins another stream.
	Gap
	// Replaced: another node stands in for the home.
	Replaced
	// Later: the partner does not know yet that the sender has the seat, or must first remove an old copy. The home
	// sends the message again.
	Later
)

// Accept returns the copies after m, and whether m must be applied, in one step with its number: to Coming if m belongs
// to its stream, even if m completes it, else to Whole. A message that begins a stream replaces Coming; a complete
// Coming becomes the new Whole. seat is the seat of the home by the partner's map.
func (c Copies) Accept(m Message, seat metadata.Epoch) (next Copies, apply bool, v Verdict) {
	switch {
	case m.Seat < max(seat, c.Whole.Sealed):
		return c, false, Replaced
	case m.Seat > seat || c.Whole.Sealed > 0:
		return c, false, Later
	}
	at := &c.Coming
	switch {
	case c.Whole.Of(m):
		at = &c.Whole
	case m.Seq == 1 && c.Whole.before(m) && c.Coming.before(m):
		*at = Copy{Seat: m.Seat, Gen: m.Gen}
	}
	if !at.Of(m) || m.Seq > at.Seq+1 || !c.Coming.before(m) && !c.Coming.Of(m) {
		return c, false, Gap
	}
	if m.Seq <= at.Seq {
		return c, false, Accepted
	}
	at.Seq = m.Seq
	if m.Complete && at == &c.Coming {
		c.Coming.Complete = true
		c.Whole, c.Coming = c.Coming, Copy{}
	}
	return c, true, Accepted
}

// Of reports whether the stream of m makes the copy c.
func (c Copy) Of(m Message) bool { return c.Seat == m.Seat && c.Gen == m.Gen }

// before reports whether the stream of m is later than that of c.
func (c Copy) before(m Message) bool { return c.Seat < m.Seat || c.Seat == m.Seat && c.Gen < m.Gen }

// Newer reports whether c comes from a later stream than o.
func (c Copy) Newer(o Copy) bool { return o.before(Message{Seat: c.Seat, Gen: c.Gen}) }

// Last returns the number of the last stream.
func (c Copies) Last() uint64 { return max(c.Whole.Gen, c.Coming.Gen) }

// Seal seals the complete copy for a seat. It returns false if there is none, or it is sealed for another seat.
func (c Copies) Seal(seat metadata.Epoch) (Copies, bool) {
	if c.Whole.Complete && c.Whole.Sealed == 0 {
		c.Whole.Sealed = seat
	}
	return c, c.Whole.Complete && c.Whole.Sealed == seat
}

// Outdated reports whether the sealed copy may be removed, because another node now has the seat.
func (c Copies) Outdated(seat metadata.Epoch) bool {
	return c.Whole.Sealed > 0 && c.Whole.Sealed < seat
}
