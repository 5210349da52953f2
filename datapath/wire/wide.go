package wire

import "github.com/bivouacfs/bivouac/metadata"

// RedirectResp is the body of a reply whose status is EREMOTE.
type RedirectResp struct {
	metadata.Redirect
}

// Append appends the encoding of m to b.
func (m RedirectResp) Append(b []byte) []byte {
	return appendU64(appendIno(b, m.Dir), uint64(m.Epoch))
}

// Parse decodes b into m.
func (m *RedirectResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Redirect = metadata.Redirect{Dir: d.ino(), Epoch: metadata.Epoch(d.u64())}
	return d.done("place of an entry")
}

func appendSection(b []byte, s metadata.Shard) []byte { return appendU64(appendIno(b, s.Dir), s.Gen) }

func (d *decoder) section() metadata.Shard {
	return metadata.Shard{Dir: d.ino(), Gen: d.u64()}
}

// ShardCreateReq begins a section of a wide directory.
type ShardCreateReq struct {
	metadata.NewShard
}

// Append appends the encoding of m to b.
func (m ShardCreateReq) Append(b []byte) []byte {
	b = appendU64(appendSection(b, m.Shard), uint64(m.Epoch))
	b = appendAttr(appendU64(b, m.Seed), &m.Attr)
	b = appendU16(b, uint16(len(m.Nodes)))
	for _, id := range m.Nodes {
		b = appendU16(b, uint16(id))
	}
	return b
}

// Parse decodes b into m.
func (m *ShardCreateReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.NewShard = metadata.NewShard{
		Shard: d.section(), Epoch: metadata.Epoch(d.u64()), Seed: d.u64(), Attr: d.attr(),
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

// ShardFillReq enters entries into a section that is not yet in force, at
// most MaxEntries.
type ShardFillReq struct {
	metadata.Shard
	Entries []metadata.Entry
}

// Append appends the encoding of m to b.
func (m ShardFillReq) Append(b []byte) []byte {
	return EntriesResp{Entries: m.Entries}.Append(appendSection(b, m.Shard))
}

// Parse decodes b into m.
func (m *ShardFillReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Shard = d.section()
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

// ShardChangeReq is an order to a section.
type ShardChangeReq struct {
	metadata.ShardChange
}

// Append appends the encoding of m to b.
func (m ShardChangeReq) Append(b []byte) []byte {
	b = append(appendSection(b, m.Shard), uint8(m.Order))
	return appendAttr(appendU64(b, m.Freeze), &m.Attr)
}

// Parse decodes b into m.
func (m *ShardChangeReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.ShardChange = metadata.ShardChange{
		Shard: d.section(), Order: metadata.ShardOrder(d.u8()), Freeze: d.u64(), Attr: d.attr(),
	}
	return d.done("order to a section")
}

// ShardReportReq tells the home of a directory about a section.
type ShardReportReq struct {
	metadata.ShardReport
}

// Append appends the encoding of m to b.
func (m ShardReportReq) Append(b []byte) []byte {
	b = appendU64(appendSection(b, m.Shard), m.Freeze)
	return appendTime(appendU32(b, m.Subdirs), m.Mtime)
}

// Parse decodes b into m.
func (m *ShardReportReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.ShardReport = metadata.ShardReport{Shard: d.section(), Freeze: d.u64(), Subdirs: d.u32(), Mtime: d.time()}
	return d.done("report of a section")
}

// ShardReportResp is what the home answers.
type ShardReportResp struct {
	metadata.ShardAnswer
}

// Append appends the encoding of m to b.
func (m ShardReportResp) Append(b []byte) []byte {
	return appendAttr(append(b, uint8(m.State)), &m.Attr)
}

// Parse decodes b into m.
func (m *ShardReportResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.ShardAnswer = metadata.ShardAnswer{State: metadata.ShardState(d.u8()), Attr: d.attr()}
	return d.done("state of a section")
}

// ShardReadReq is ReadDirReq for the names alone, of a directory that was spread in
// Epoch; 0 is that it is not wide.
type ShardReadReq struct {
	ReadDirReq
	Epoch metadata.Epoch
}

// Append appends the encoding of m to b.
func (m ShardReadReq) Append(b []byte) []byte {
	return m.ReadDirReq.Append(appendU64(b, uint64(m.Epoch)))
}

// Parse decodes b into m.
func (m *ShardReadReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Epoch = metadata.Epoch(d.u64())
	if d.bad {
		return d.done("names request")
	}
	return m.ReadDirReq.Parse(d.b)
}
