package wire

import "github.com/bivouacfs/bivouac/metadata"

// lockSize is that of a Lock, in bytes.
const lockSize = 1 + 1 + 8 + 8 + 8 + 4

// LockReq asks for a lock, or its end.
type LockReq struct {
	Run metadata.Run
	Req metadata.LockReq
}

// Append appends the encoding of m to b.
func (m LockReq) Append(b []byte) []byte {
	b = appendIno(appendU64(b, uint64(m.Run)), m.Req.Ino)
	return appendBool(appendU64(appendLock(b, m.Req.Lock), m.Req.Waiter), m.Req.Cancel)
}

// Parse decodes b into m.
func (m *LockReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = LockReq{Run: metadata.Run(d.u64()), Req: metadata.LockReq{
		Ino: d.ino(), Lock: d.lock(), Waiter: d.u64(), Cancel: d.bool(),
	}}
	return d.done("lock request")
}

// LockResp answers a LockReq.
type LockResp struct {
	Answer metadata.LockAnswer
}

// Append appends the encoding of m to b.
func (m LockResp) Append(b []byte) []byte {
	return appendU64(appendBool(b, m.Answer.Granted), m.Answer.Version)
}

// Parse decodes b into m.
func (m *LockResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Answer = metadata.LockAnswer{Granted: d.bool(), Version: d.u64()}
	return d.done("answer to a lock request")
}

// HeldLockResp answers what stands in the way of a lock: test-lock.
type HeldLockResp struct {
	Node metadata.NodeID
	Lock metadata.Lock
}

// Append appends the encoding of m to b.
func (m HeldLockResp) Append(b []byte) []byte {
	return appendLock(appendU16(b, uint16(m.Node)), m.Lock)
}

// Parse decodes b into m.
func (m *HeldLockResp) Parse(b []byte) error {
	d := decoder{b: b}
	*m = HeldLockResp{Node: metadata.NodeID(d.u16()), Lock: d.lock()}
	return d.done("held lock")
}

// WakeReq has waiters ask again.
type WakeReq struct {
	Waiters []uint64
}

// Append appends the encoding of m to b.
func (m WakeReq) Append(b []byte) []byte {
	b = appendU32(b, uint32(len(m.Waiters)))
	for _, w := range m.Waiters {
		b = appendU64(b, w)
	}
	return b
}

// Parse decodes b into m.
func (m *WakeReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Waiters = nil
	if n := d.count(8); n > 0 {
		m.Waiters = make([]uint64, n)
	}
	for i := range m.Waiters {
		m.Waiters[i] = d.u64()
	}
	return d.done("waiters")
}

func appendLock(b []byte, l metadata.Lock) []byte {
	b = append(b, uint8(l.Kind), uint8(l.Type))
	return appendU32(appendU64(appendU64(appendU64(b, l.Owner), l.Start), l.End), l.PID)
}

func (d *decoder) lock() metadata.Lock {
	return metadata.Lock{
		Kind: metadata.LockKind(d.u8()), Type: metadata.LockType(d.u8()),
		Owner: d.u64(), Start: d.u64(), End: d.u64(), PID: d.u32(),
	}
}

func (d *decoder) locks() []metadata.Lock {
	n := d.count(lockSize)
	if n == 0 {
		return nil
	}
	ls := make([]metadata.Lock, n)
	for i := range ls {
		ls[i] = d.lock()
	}
	return ls
}
