package wire

import "github.com/bivouacfs/bivouac/metadata"

// editSize is the encoding of an Edit without its strings and its New.
const editSize = 1 + 8 + 4 + 8 + 4 + 8 + 4 + 1

func appendEdit(b []byte, e *metadata.Edit) []byte {
	b = append(b, uint8(e.Kind))
	b = appendString(appendIno(b, e.Dir), e.Name)
	b = appendU32(appendIno(b, e.Ino), e.Mode)
	b = appendString(appendIno(b, e.ToDir), e.ToName)
	b = appendBool(b, e.New != nil)
	if e.New == nil {
		return b
	}
	return appendNew(b, e.New)
}

func (d *decoder) edit() metadata.Edit {
	e := metadata.Edit{
		Kind: metadata.EditKind(d.u8()),
		Dir:  d.ino(), Name: d.string(),
		Ino: d.ino(), Mode: d.u32(),
		ToDir: d.ino(), ToName: d.string(),
	}
	if d.bool() {
		n := d.new()
		e.New = &n
	}
	return e
}

// PrepareReq asks a home to promise edits.
type PrepareReq struct {
	Tx    metadata.TxID
	Edits []metadata.Edit // at most metadata.MaxEdits
}

// Append appends the encoding of m to b.
func (m PrepareReq) Append(b []byte) []byte {
	b = append(appendU64(b, uint64(m.Tx)), uint8(len(m.Edits)))
	for i := range m.Edits {
		b = appendEdit(b, &m.Edits[i])
	}
	return b
}

// Parse decodes b into m.
func (m *PrepareReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = PrepareReq{Tx: metadata.TxID(d.u64())}
	n := int(d.u8())
	if n > metadata.MaxEdits || n*editSize > len(d.b) {
		d.bad = true
		return d.done("prepare request")
	}
	for range n {
		m.Edits = append(m.Edits, d.edit())
	}
	return d.done("prepare request")
}

// VoteResp answers with a home's vote.
type VoteResp struct {
	Vote metadata.Vote
}

// Append appends the encoding of m to b.
func (m VoteResp) Append(b []byte) []byte {
	b = appendBool(b, m.Vote.Old != nil)
	if m.Vote.Old != nil {
		b = appendEntry(b, m.Vote.Old)
	}
	b = appendBool(b, m.Vote.Attr != nil)
	if m.Vote.Attr != nil {
		b = appendAttr(b, m.Vote.Attr)
	}
	return b
}

// Parse decodes b into m.
func (m *VoteResp) Parse(b []byte) error {
	d := decoder{b: b}
	*m = VoteResp{}
	if d.bool() {
		e := d.entry(newAttr)
		m.Vote.Old = &e
	}
	if d.bool() {
		a := d.attr()
		m.Vote.Attr = &a
	}
	return d.done("vote")
}

// TxReq names a transaction: commit, abort, outcome.
type TxReq struct {
	Tx metadata.TxID
}

// Append appends the encoding of m to b.
func (m TxReq) Append(b []byte) []byte { return appendU64(b, uint64(m.Tx)) }

// Parse decodes b into m.
func (m *TxReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Tx = metadata.TxID(d.u64())
	return d.done("transaction request")
}

// OutcomeResp answers what became of a transaction.
type OutcomeResp struct {
	Outcome metadata.Outcome
}

// Append appends the encoding of m to b.
func (m OutcomeResp) Append(b []byte) []byte { return append(b, uint8(m.Outcome)) }

// Parse decodes b into m.
func (m *OutcomeResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Outcome = metadata.Outcome(d.u8())
	d.bad = d.bad || m.Outcome > metadata.Aborted
	return d.done("outcome")
}

// RenameLockReq asks for the lock under which directories move, or gives it back.
type RenameLockReq struct {
	Tx     metadata.TxID
	Unlock bool
}

// Append appends the encoding of m to b.
func (m RenameLockReq) Append(b []byte) []byte {
	return appendBool(appendU64(b, uint64(m.Tx)), m.Unlock)
}

// Parse decodes b into m.
func (m *RenameLockReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = RenameLockReq{Tx: metadata.TxID(d.u64()), Unlock: d.bool()}
	return d.done("moves request")
}

// AncestorReq asks for the way up from a directory.
type AncestorReq struct {
	From, Stop metadata.Ino
}

// Append appends the encoding of m to b.
func (m AncestorReq) Append(b []byte) []byte { return appendIno(appendIno(b, m.From), m.Stop) }

// Parse decodes b into m.
func (m *AncestorReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = AncestorReq{From: d.ino(), Stop: d.ino()}
	return d.done("climb request")
}
