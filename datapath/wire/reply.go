package wire

import "github.com/bivouacfs/bivouac/metadata"

// AttrResp answers with attributes.
type AttrResp struct {
	Attr metadata.Attr
}

// Append appends the encoding of m to b.
func (m AttrResp) Append(b []byte) []byte { return appendAttr(b, &m.Attr) }

// Parse decodes b into m.
func (m *AttrResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Attr = d.attr()
	return d.done("attributes")
}

// EntryResp answers with an entry, or with none.
type EntryResp struct {
	Entry *metadata.Entry
}

// Append appends the encoding of m to b.
func (m EntryResp) Append(b []byte) []byte {
	b = appendBool(b, m.Entry != nil)
	if m.Entry == nil {
		return b
	}
	return appendEntry(b, m.Entry)
}

// Parse decodes b into m.
func (m *EntryResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Entry = nil
	if d.bool() {
		e := d.entry(newAttr)
		m.Entry = &e
	}
	return d.done("entry")
}

// EntriesResp answers with the entries of a directory, at most MaxEntries.
type EntriesResp struct {
	Entries []metadata.Entry
}

// Append appends the encoding of m to b.
func (m EntriesResp) Append(b []byte) []byte {
	b = appendU32(b, uint32(len(m.Entries)))
	for i := range m.Entries {
		b = appendEntry(b, &m.Entries[i])
	}
	return b
}

// Parse decodes b into m. The Attrs of the entries share one piece of memory.
func (m *EntriesResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Entries = nil
	n := d.u32()
	if uint64(n)*entrySize > uint64(len(d.b)) {
		d.bad = true
		return d.done("entries")
	}
	if n > 0 {
		m.Entries = make([]metadata.Entry, n)
	}
	var room []metadata.Attr // allocated with the first Attr, for all that can follow
	attr := func() *metadata.Attr {
		if len(room) == 0 {
			room = make([]metadata.Attr, 1+min(int(n), len(d.b)/(entrySize+attrSize)))
		}
		a := &room[0]
		room = room[1:]
		return a
	}
	for i := range m.Entries {
		if d.bad {
			break
		}
		m.Entries[i] = d.entry(attr)
	}
	return d.done("entries")
}

// StringResp answers with a string: readlink.
type StringResp struct {
	S string
}

// Append appends the encoding of m to b.
func (m StringResp) Append(b []byte) []byte { return appendString(b, m.S) }

// Parse decodes b into m.
func (m *StringResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.S = d.string()
	return d.done("string")
}
