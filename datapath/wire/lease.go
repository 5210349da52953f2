package wire

import (
	"math"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// MaxRevoked is the most keys in one RevokeReq.
const MaxRevoked = 1024

// LeasedEntryResp answers with an entry and for how long it may be kept.
type LeasedEntryResp struct {
	Entry metadata.Entry
	Lease metadata.Lease
}

// Append appends the encoding of m to b.
func (m LeasedEntryResp) Append(b []byte) []byte {
	return appendLease(appendEntry(b, &m.Entry), m.Lease)
}

// Parse decodes b into m.
func (m *LeasedEntryResp) Parse(b []byte) error {
	d := decoder{b: b}
	*m = LeasedEntryResp{Entry: d.entry(newAttr), Lease: d.lease()}
	return d.done("leased entry")
}

// LeasedAttrResp answers with attributes and for how long they may be kept.
type LeasedAttrResp struct {
	Attr  metadata.Attr
	Lease metadata.Lease
}

// Append appends the encoding of m to b.
func (m LeasedAttrResp) Append(b []byte) []byte {
	return appendLease(appendAttr(b, &m.Attr), m.Lease)
}

// Parse decodes b into m.
func (m *LeasedAttrResp) Parse(b []byte) error {
	d := decoder{b: b}
	*m = LeasedAttrResp{Attr: d.attr(), Lease: d.lease()}
	return d.done("leased attributes")
}

// RevokeReq names what must not be kept any longer: at most MaxRevoked keys.
type RevokeReq struct {
	Keys []metadata.LeaseKey
}

// Append appends the encoding of m to b.
func (m RevokeReq) Append(b []byte) []byte {
	b = appendU16(b, uint16(len(m.Keys)))
	for _, k := range m.Keys {
		b = appendString(appendIno(b, k.Ino), k.Name)
	}
	return b
}

// Parse decodes b into m.
func (m *RevokeReq) Parse(b []byte) error {
	d := decoder{b: b}
	n := int(d.u16())
	if n > MaxRevoked {
		d.bad = true
	}
	m.Keys = nil
	for range n {
		if d.bad {
			break
		}
		m.Keys = append(m.Keys, metadata.LeaseKey{Ino: d.ino(), Name: d.string()})
	}
	return d.done("revocation")
}

func (d *decoder) lease() metadata.Lease {
	return metadata.Lease{
		Entry: time.Duration(d.u32()) * time.Millisecond,
		Attr:  time.Duration(d.u32()) * time.Millisecond,
	}
}

// appendLease cuts to whole milliseconds, so that a lease gets shorter on its
// way, never longer.
func appendLease(b []byte, l metadata.Lease) []byte {
	return appendU32(appendU32(b, millis(l.Entry)), millis(l.Attr))
}

func millis(d time.Duration) uint32 {
	return uint32(min(max(d/time.Millisecond, 0), math.MaxUint32))
}
