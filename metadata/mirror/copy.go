package mirror

import "github.com/bivouacfs/bivouac/metadata"

// Copy is the receiving half: what a partner has of a home. Its owner keeps it with the records.
type Copy struct {
	Seat     metadata.Epoch // of the sender
	Gen, Seq uint64         // of the last message; Gen 0 is none
	Complete bool
	Sealed   metadata.Epoch // it is a home now, or was one: the seat (cluster.Node.Seat); 0 is none
}

// Copies are those that a partner has of one home: the last complete one, and one that is being made.
type Copies struct{ Whole, Coming Copy }

// Verdict is the answer to a message.
type Verdict uint8

// The verdicts.
const (
	Accepted Verdict = iota
	// Gap: another message is missing before it, or the stream is not the last one. The home begins another one.
	Gap
	// Replaced: another node stands in for the home.
	Replaced
	// Later: the partner does not know yet that the sender has the seat, or has an old copy of its own to give up. It is
	// sent again.
	Later
)

// Accept returns the copies with m, and whether m is to be applied: to Coming if it was or is not complete, in one
// step with its number. A message that begins a stream replaces Coming; a complete Coming is the new Whole. seat is that
// of the home by the map of the partner.
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

// Of reports whether c is a copy by the stream of m.
func (c Copy) Of(m Message) bool { return c.Seat == m.Seat && c.Gen == m.Gen }

// before reports whether the stream of m is a later one.
func (c Copy) before(m Message) bool { return c.Seat < m.Seat || c.Seat == m.Seat && c.Gen < m.Gen }

// Newer reports whether c is a copy by a later stream than o.
func (c Copy) Newer(o Copy) bool { return o.before(Message{Seat: c.Seat, Gen: c.Gen}) }

// Last is the last stream's number.
func (c Copies) Last() uint64 { return max(c.Whole.Gen, c.Coming.Gen) }

// Seal returns the copies with the complete one sealed, for a seat. It is false if none is complete.
func (c Copies) Seal(seat metadata.Epoch) (Copies, bool) {
	if c.Whole.Complete && c.Whole.Sealed == 0 {
		c.Whole.Sealed = seat
	}
	return c, c.Whole.Complete && c.Whole.Sealed == seat
}

// Outdated reports whether the sealed copy counts no more, because another node has the seat: it can go.
func (c Copies) Outdated(seat metadata.Epoch) bool {
	return c.Whole.Sealed > 0 && c.Whole.Sealed < seat
}
