package wire

import "github.com/bivouacfs/bivouac/metadata"

// MaxOpened is the most files that a sender puts in one ClosedReq, RecallReq, RecallResp or InosReq.
const MaxOpened = 4096

// OpenReq tells the home that a client opens a file.
type OpenReq struct {
	Run metadata.Run
	Ino metadata.Ino
	metadata.Opening
}

func (m *OpenReq) fields(c *codec) {
	u64(c, &m.Run)
	u64(c, &m.Ino)
	c.opening(&m.Opening)
}

// OpenResp answers an OpenReq or a CreateOpenReq.
type OpenResp struct{ metadata.Holding }

func (m *OpenResp) fields(c *codec) {
	c.attr(&m.Attr)
	c.bool(&m.Maps)
	c.bool(&m.Alone)
	u64(c, &m.Holding.Run)
}

// OpenAheadReq opens files that the client will probably read soon.
type OpenAheadReq struct {
	Run   metadata.Run
	Files []metadata.OpenAhead // at most MaxFiles
}

func (m *OpenAheadReq) fields(c *codec) {
	u64(c, &m.Run)
	list(c, &m.Files, MaxFiles, 8+8, func(c *codec, o *metadata.OpenAhead) {
		u64(c, &o.Ino)
		u64(c, &o.Ticket)
	})
}

// OpenAheadResp returns the files that an OpenAheadReq has opened.
type OpenAheadResp struct {
	Run   metadata.Run
	Attrs []metadata.Attr
}

func (m *OpenAheadResp) fields(c *codec) {
	u64(c, &m.Run)
	list(c, &m.Attrs, MaxFiles, attrSize, (*codec).attr)
}

// CreateOpenReq creates a file and opens it for the client.
type CreateOpenReq struct {
	Run metadata.Run
	metadata.Opening
	CreateReq
}

func (m *CreateOpenReq) fields(c *codec) {
	u64(c, &m.Run)
	c.opening(&m.Opening)
	m.CreateReq.fields(c)
}

// ClosedReq reports the files that a client has closed.
type ClosedReq struct {
	Run   metadata.Run
	Files []metadata.Opened
}

func (m *ClosedReq) fields(c *codec) {
	u64(c, &m.Run)
	list(c, &m.Files, unlimited, openedSize, (*codec).opened)
}

// RecallReq asks a client which of the sender's files it has open.
type RecallReq struct {
	Run   metadata.Run
	After metadata.Ino
	Only  []metadata.Ino
}

func (m *RecallReq) fields(c *codec) {
	u64(c, &m.Run)
	u64(c, &m.After)
	list(c, &m.Only, unlimited, 8, u64[metadata.Ino])
}

// RecallResp answers a RecallReq.
type RecallResp struct{ metadata.Recalled }

func (m *RecallResp) fields(c *codec) {
	u64(c, &m.Run)
	u64(c, &m.Floor)
	c.bool(&m.More)
	c.bool(&m.Busy)
	list(c, &m.Files, unlimited, openedSize, (*codec).opened)
}

// InosReq names inodes: remove-objects.
type InosReq struct{ Inos []metadata.Ino }

func (m *InosReq) fields(c *codec) { list(c, &m.Inos, unlimited, 8, u64[metadata.Ino]) }

// AppendReq asks for a range at the end of a file.
type AppendReq struct {
	Run metadata.Run
	Req metadata.Append
}

func (m *AppendReq) fields(c *codec) {
	u64(c, &m.Run)
	u64(c, &m.Req.Ino)
	u64(c, &m.Req.Seq)
	u64(c, &m.Req.Len)
	u64(c, &m.Req.End)
	u64(c, &m.Req.Wait)
	u64(c, &m.Req.Unused)
	u64(c, &m.Req.Freeze)
	c.bool(&m.Req.Thaw)
}

// PlaceResp answers an AppendReq.
type PlaceResp struct{ Place metadata.Place }

func (m *PlaceResp) fields(c *codec) {
	u64(c, &m.Place.Off)
	u64(c, &m.Place.Tail)
	c.attr(&m.Place.Attr)
	c.bool(&m.Place.Alone)
}

// LockReq takes or releases a byte-range lock.
type LockReq struct {
	Run metadata.Run
	Req metadata.LockReq
}

func (m *LockReq) fields(c *codec) {
	u64(c, &m.Run)
	u64(c, &m.Req.Ino)
	c.lock(&m.Req.Lock)
	u64(c, &m.Req.Waiter)
	c.bool(&m.Req.Cancel)
}

// LockResp answers a LockReq.
type LockResp struct{ Answer metadata.LockAnswer }

func (m *LockResp) fields(c *codec) {
	c.bool(&m.Answer.Granted)
	u64(c, &m.Answer.Version)
}

// HeldLockResp answers with the conflicting lock: test-lock.
type HeldLockResp struct {
	Node metadata.NodeID
	Lock metadata.Lock
}

func (m *HeldLockResp) fields(c *codec) {
	u16(c, &m.Node)
	c.lock(&m.Lock)
}

// WakeReq makes waiters request their locks again.
type WakeReq struct{ Waiters []uint64 }

func (m *WakeReq) fields(c *codec) { list(c, &m.Waiters, unlimited, 8, u64[uint64]) }

func (c *codec) opened(o *metadata.Opened) {
	u64(c, &o.Ino)
	u64(c, &o.Ticket)
	c.bool(&o.Unsure)
	u64(c, &o.Outstanding.Seq)
	c.extent(&o.Outstanding.Extent)
	list(c, &o.Written, unlimited, 16, (*codec).extent)
	list(c, &o.Locks, unlimited, lockSize, (*codec).lock)
	c.bool(&o.Maps)
}

func (c *codec) opening(o *metadata.Opening) {
	u64(c, &o.Ticket)
	c.bool(&o.Maps)
}

func (c *codec) extent(e *metadata.Extent) {
	u64(c, &e.Off)
	u64(c, &e.Len)
}

func (c *codec) lock(l *metadata.Lock) {
	u8(c, &l.Kind)
	u8(c, &l.Type)
	u64(c, &l.Owner)
	u64(c, &l.Start)
	u64(c, &l.End)
	u32(c, &l.PID)
}
