package mirror

// Copy is the receiving half: what a partner has of a home. Its owner keeps it with the records.
type Copy struct {
	Gen, Seq uint64 // of the last message; Gen 0 is none
	Complete bool
	Sealed   bool // it is a home now
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
	// Replaced: the partner stands in for the home.
	Replaced
)

// Accept returns the copies with m, and whether m is to be applied: to Coming if it was or is not complete, in one
// step with its number. A message that begins a stream replaces Coming; a complete Coming is the new Whole.
func (c Copies) Accept(m Message) (next Copies, apply bool, v Verdict) {
	if c.Whole.Sealed {
		return c, false, Replaced
	}
	at := &c.Coming
	switch {
	case m.Gen == c.Whole.Gen:
		at = &c.Whole
	case m.Gen > c.Last() && m.Seq == 1:
		*at = Copy{Gen: m.Gen}
	}
	if m.Gen < c.Last() || m.Gen != at.Gen || m.Seq > at.Seq+1 {
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

// Last is the last stream.
func (c Copies) Last() uint64 { return max(c.Whole.Gen, c.Coming.Gen) }

// Seal returns the copies with the complete one sealed. It is false if none is complete.
func (c Copies) Seal() (Copies, bool) {
	c.Whole.Sealed = c.Whole.Complete
	return c, c.Whole.Sealed
}
