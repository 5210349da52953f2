package wire

import "github.com/bivouacfs/bivouac/metadata"

// openedSize is that of an Opened without its lists, in bytes.
const openedSize = 8 + 8 + 1 + 3*8 + 4 + 4

// MaxOpened is the most files that one ClosedReq, RecallReq, RecallResp or
// InosReq is made to hold.
const MaxOpened = 4096

// OpenReq says that a client opens a file.
type OpenReq struct {
	Run    metadata.Run
	Ticket metadata.Ticket
	Ino    metadata.Ino
}

// Append appends the encoding of m to b.
func (m OpenReq) Append(b []byte) []byte {
	return appendIno(appendU64(appendU64(b, uint64(m.Run)), uint64(m.Ticket)), m.Ino)
}

// Parse decodes b into m.
func (m *OpenReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = OpenReq{Run: metadata.Run(d.u64()), Ticket: metadata.Ticket(d.u64()), Ino: d.ino()}
	return d.done("open request")
}

// CreateOpenReq asks for a new file that its client has open.
type CreateOpenReq struct {
	Run    metadata.Run
	Ticket metadata.Ticket
	CreateReq
}

// Append appends the encoding of m to b.
func (m CreateOpenReq) Append(b []byte) []byte {
	return m.CreateReq.Append(appendU64(appendU64(b, uint64(m.Run)), uint64(m.Ticket)))
}

// Parse decodes b into m.
func (m *CreateOpenReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Run, m.Ticket = metadata.Run(d.u64()), metadata.Ticket(d.u64())
	if d.bad {
		return d.done("create and open request")
	}
	return m.CreateReq.Parse(d.b)
}

// ClosedReq says what a client has closed.
type ClosedReq struct {
	Run   metadata.Run
	Files []metadata.Opened
}

// Append appends the encoding of m to b.
func (m ClosedReq) Append(b []byte) []byte {
	return appendOpened(appendU64(b, uint64(m.Run)), m.Files)
}

// Parse decodes b into m.
func (m *ClosedReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = ClosedReq{Run: metadata.Run(d.u64()), Files: d.opened()}
	return d.done("closed files")
}

// RecallReq asks a client what it has open of the sender's files.
type RecallReq struct {
	Run   metadata.Run
	After metadata.Ino
	Only  []metadata.Ino
}

// Append appends the encoding of m to b.
func (m RecallReq) Append(b []byte) []byte {
	return appendInos(appendIno(appendU64(b, uint64(m.Run)), m.After), m.Only)
}

// Parse decodes b into m.
func (m *RecallReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = RecallReq{Run: metadata.Run(d.u64()), After: d.ino(), Only: d.inos()}
	return d.done("recall request")
}

// RecallResp answers a RecallReq.
type RecallResp struct {
	metadata.Recalled
}

// Append appends the encoding of m to b.
func (m RecallResp) Append(b []byte) []byte {
	b = appendU64(appendU64(b, uint64(m.Run)), uint64(m.Floor))
	return appendOpened(appendBool(b, m.More), m.Files)
}

// Parse decodes b into m.
func (m *RecallResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Recalled = metadata.Recalled{
		Run: metadata.Run(d.u64()), Floor: metadata.Ticket(d.u64()), More: d.bool(), Files: d.opened(),
	}
	return d.done("recalled files")
}

// InosReq names inodes: remove-objects.
type InosReq struct {
	Inos []metadata.Ino
}

// Append appends the encoding of m to b.
func (m InosReq) Append(b []byte) []byte { return appendInos(b, m.Inos) }

// Parse decodes b into m.
func (m *InosReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Inos = d.inos()
	return d.done("inode numbers")
}

// AppendReq asks for a place at the end of a file.
type AppendReq struct {
	Run metadata.Run
	Req metadata.Append
}

// Append appends the encoding of m to b.
func (m AppendReq) Append(b []byte) []byte {
	q := &m.Req
	b = appendU64(appendIno(appendU64(b, uint64(m.Run)), q.Ino), q.Seq)
	b = appendI64(appendI64(appendI64(b, q.Len), q.End), q.Wait)
	return appendBool(appendBool(appendU64(b, q.Unused), q.Freeze), q.Thaw)
}

// Parse decodes b into m.
func (m *AppendReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = AppendReq{Run: metadata.Run(d.u64()), Req: metadata.Append{
		Ino: d.ino(), Seq: d.u64(), Len: d.i64(), End: d.i64(), Wait: d.i64(),
		Unused: d.u64(), Freeze: d.bool(), Thaw: d.bool(),
	}}
	return d.done("append request")
}

// PlaceResp answers an AppendReq.
type PlaceResp struct {
	Place metadata.Place
}

// Append appends the encoding of m to b.
func (m PlaceResp) Append(b []byte) []byte {
	b = appendI64(appendI64(appendU64(b, uint64(m.Place.Run)), m.Place.Off), m.Place.Tail)
	return appendBool(appendAttr(b, &m.Place.Attr), m.Place.Alone)
}

// Parse decodes b into m.
func (m *PlaceResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Place = metadata.Place{Run: metadata.Run(d.u64()), Off: d.i64(), Tail: d.i64(), Attr: d.attr(), Alone: d.bool()}
	return d.done("place of an append")
}

func appendInos(b []byte, inos []metadata.Ino) []byte {
	b = appendU32(b, uint32(len(inos)))
	for _, i := range inos {
		b = appendIno(b, i)
	}
	return b
}

func (d *decoder) inos() []metadata.Ino {
	n := d.count(8)
	if n == 0 {
		return nil
	}
	inos := make([]metadata.Ino, n)
	for i := range inos {
		inos[i] = d.ino()
	}
	return inos
}

func appendOpened(b []byte, files []metadata.Opened) []byte {
	b = appendU32(b, uint32(len(files)))
	for _, o := range files {
		b = appendBool(appendU64(appendIno(b, o.Ino), uint64(o.Ticket)), o.Unsure)
		b = appendI64(appendI64(appendU64(b, o.Flight.Seq), o.Flight.Off), o.Flight.Len)
		b = appendU32(b, uint32(len(o.Placed)))
		for _, e := range o.Placed {
			b = appendI64(appendI64(b, e.Off), e.Len)
		}
		b = appendU32(b, uint32(len(o.Locks)))
		for _, l := range o.Locks {
			b = appendLock(b, l)
		}
	}
	return b
}

func (d *decoder) opened() []metadata.Opened {
	n := d.count(openedSize)
	if n == 0 {
		return nil
	}
	files := make([]metadata.Opened, n)
	for i := range files {
		files[i] = metadata.Opened{
			Ino: d.ino(), Ticket: metadata.Ticket(d.u64()), Unsure: d.bool(),
			Flight: metadata.Flight{Seq: d.u64(), Extent: d.extent()}, Placed: d.extents(), Locks: d.locks(),
		}
	}
	return files
}

func (d *decoder) extent() metadata.Extent { return metadata.Extent{Off: d.i64(), Len: d.i64()} }

func (d *decoder) extents() []metadata.Extent {
	n := d.count(16)
	if n == 0 {
		return nil
	}
	es := make([]metadata.Extent, n)
	for i := range es {
		es[i] = d.extent()
	}
	return es
}

// count is how many things of size bytes follow; no more than there is room for.
func (d *decoder) count(size int) int {
	n := d.u32()
	if uint64(n)*uint64(size) > uint64(len(d.b)) {
		d.bad = true
		return 0
	}
	return int(n)
}
