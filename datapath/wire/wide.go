package wire

import "github.com/bivouacfs/bivouac/metadata"

// ElsewhereResp is the body of a reply whose status is EREMOTE.
type ElsewhereResp struct {
	metadata.Elsewhere
}

// Append appends the encoding of m to b.
func (m ElsewhereResp) Append(b []byte) []byte {
	return appendU64(appendIno(b, m.Dir), uint64(m.Epoch))
}

// Parse decodes b into m.
func (m *ElsewhereResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Elsewhere = metadata.Elsewhere{Dir: d.ino(), Epoch: metadata.Epoch(d.u64())}
	return d.done("place of an entry")
}

func appendSection(b []byte, s metadata.Section) []byte { return appendU64(appendIno(b, s.Dir), s.Gen) }

func (d *decoder) section() metadata.Section {
	return metadata.Section{Dir: d.ino(), Gen: d.u64()}
}

// SectionMakeReq begins a section of a wide directory.
type SectionMakeReq struct {
	metadata.NewSection
}

// Append appends the encoding of m to b.
func (m SectionMakeReq) Append(b []byte) []byte {
	b = appendU64(appendSection(b, m.Section), uint64(m.Epoch))
	b = appendAttr(appendU64(b, m.Seed), &m.Attr)
	b = appendU16(b, uint16(len(m.Nodes)))
	for _, id := range m.Nodes {
		b = appendU16(b, uint16(id))
	}
	return b
}

// Parse decodes b into m.
func (m *SectionMakeReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.NewSection = metadata.NewSection{
		Section: d.section(), Epoch: metadata.Epoch(d.u64()), Seed: d.u64(), Attr: d.attr(),
	}
	n := int(d.u16())
	if 2*n > len(d.b) {
		d.bad = true
		return d.done("new section")
	}
	for range n {
		m.Nodes = append(m.Nodes, metadata.NodeID(d.u16()))
	}
	return d.done("new section")
}

// SectionFillReq enters entries into a section that is not yet in force, at
// most MaxEntries.
type SectionFillReq struct {
	metadata.Section
	Entries []metadata.Entry
}

// Append appends the encoding of m to b.
func (m SectionFillReq) Append(b []byte) []byte {
	return EntriesResp{Entries: m.Entries}.Append(appendSection(b, m.Section))
}

// Parse decodes b into m.
func (m *SectionFillReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Section = d.section()
	if d.bad {
		return d.done("entries of a section")
	}
	var es EntriesResp
	if err := es.Parse(d.b); err != nil {
		return err
	}
	m.Entries = es.Entries
	return nil
}

// SectionChangeReq is an order to a section.
type SectionChangeReq struct {
	metadata.SectionChange
}

// Append appends the encoding of m to b.
func (m SectionChangeReq) Append(b []byte) []byte {
	b = append(appendSection(b, m.Section), uint8(m.Order))
	return appendAttr(appendU64(b, m.Freeze), &m.Attr)
}

// Parse decodes b into m.
func (m *SectionChangeReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.SectionChange = metadata.SectionChange{
		Section: d.section(), Order: metadata.SectionOrder(d.u8()), Freeze: d.u64(), Attr: d.attr(),
	}
	return d.done("order to a section")
}

// SectionReportReq tells the home of a directory about a section.
type SectionReportReq struct {
	metadata.SectionReport
}

// Append appends the encoding of m to b.
func (m SectionReportReq) Append(b []byte) []byte {
	b = appendU64(appendSection(b, m.Section), m.Freeze)
	return appendTime(appendU32(b, m.Subdirs), m.Mtime)
}

// Parse decodes b into m.
func (m *SectionReportReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.SectionReport = metadata.SectionReport{Section: d.section(), Freeze: d.u64(), Subdirs: d.u32(), Mtime: d.time()}
	return d.done("report of a section")
}

// SectionReportResp is what the home answers.
type SectionReportResp struct {
	metadata.SectionAnswer
}

// Append appends the encoding of m to b.
func (m SectionReportResp) Append(b []byte) []byte {
	return appendAttr(append(b, uint8(m.State)), &m.Attr)
}

// Parse decodes b into m.
func (m *SectionReportResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.SectionAnswer = metadata.SectionAnswer{State: metadata.SectionState(d.u8()), Attr: d.attr()}
	return d.done("state of a section")
}

// NamesReq is ReadDirReq for the names alone, of a directory that was spread in
// Epoch; 0 is that it is not wide.
type NamesReq struct {
	ReadDirReq
	Epoch metadata.Epoch
}

// Append appends the encoding of m to b.
func (m NamesReq) Append(b []byte) []byte {
	return m.ReadDirReq.Append(appendU64(b, uint64(m.Epoch)))
}

// Parse decodes b into m.
func (m *NamesReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Epoch = metadata.Epoch(d.u64())
	if d.bad {
		return d.done("names request")
	}
	return m.ReadDirReq.Parse(d.b)
}
