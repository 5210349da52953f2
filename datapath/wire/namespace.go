package wire

import (
	"math"
	"time"

	"github.com/bivouacfs/bivouac/metadata"
)

// DirName asks for a name in a directory: lookup, unlink, rmdir.
type DirName struct {
	Dir  metadata.Ino
	Name string
}

func (m *DirName) fields(c *codec) {
	u64(c, &m.Dir)
	c.string(&m.Name)
}

// CreateReq asks for a new inode under a name: create, mkdir.
type CreateReq struct {
	Dir  metadata.Ino
	Name string
	New  metadata.New
}

func (m *CreateReq) fields(c *codec) {
	u64(c, &m.Dir)
	c.string(&m.Name)
	c.newInode(&m.New)
}

// RenameReq asks for a rename.
type RenameReq struct{ metadata.Rename }

func (m *RenameReq) fields(c *codec) {
	u64(c, &m.Dir)
	c.string(&m.Name)
	u64(c, &m.NewDir)
	c.string(&m.NewName)
	u32(c, &m.Flags)
}

// ReadDirReq asks for at most Limit entries of a directory, itself at most MaxEntries.
type ReadDirReq struct {
	Dir   metadata.Ino
	After string
	Limit uint32
}

func (m *ReadDirReq) fields(c *codec) {
	u64(c, &m.Dir)
	c.string(&m.After)
	u32(c, &m.Limit)
}

// InoReq names an inode: getattr, readlink, listxattr, sync, remove-object, allocated.
type InoReq struct{ Ino metadata.Ino }

func (m *InoReq) fields(c *codec) { u64(c, &m.Ino) }

// SetattrReq asks for a change of attributes.
type SetattrReq struct {
	Ino    metadata.Ino
	Change metadata.Change
}

func (m *SetattrReq) fields(c *codec) {
	u64(c, &m.Ino)
	c.change(&m.Change)
}

// LinkReq asks for one more name of an inode.
type LinkReq struct {
	Ino  metadata.Ino
	Dir  metadata.Ino
	Name string
}

func (m *LinkReq) fields(c *codec) {
	u64(c, &m.Ino)
	u64(c, &m.Dir)
	c.string(&m.Name)
}

// AttrResp answers with attributes, Before included.
type AttrResp struct{ Attr metadata.Attr }

func (m *AttrResp) fields(c *codec) {
	c.attr(&m.Attr)
	u64(c, &m.Attr.Before)
}

// EntryResp answers with an entry, or with none.
type EntryResp struct{ Entry *metadata.Entry }

func (m *EntryResp) fields(c *codec) { optional(c, &m.Entry, (*codec).entry) }

// EntriesResp answers with the entries of a directory, at most MaxEntries.
type EntriesResp struct{ Entries []metadata.Entry }

func (m *EntriesResp) fields(c *codec) {
	list(c, &m.Entries, unlimited, entrySize, (*codec).entry)
}

// StringResp answers with a string: readlink.
type StringResp struct{ S string }

func (m *StringResp) fields(c *codec) { c.string(&m.S) }

// XattrReq names an extended attribute: getxattr, removexattr.
type XattrReq struct {
	Ino  metadata.Ino
	Name string
}

func (m *XattrReq) fields(c *codec) {
	u64(c, &m.Ino)
	c.string(&m.Name)
}

// SetxattrReq asks for an extended attribute to be set.
type SetxattrReq struct {
	Ino   metadata.Ino
	Xattr metadata.Xattr
}

func (m *SetxattrReq) fields(c *codec) {
	u64(c, &m.Ino)
	u8(c, &m.Xattr.Mode)
	c.string(&m.Xattr.Name)
	c.bytes(&m.Xattr.Value)
}

// BytesResp answers with bytes: getxattr.
type BytesResp struct{ B []byte }

func (m *BytesResp) fields(c *codec) { c.bytes(&m.B) }

// NamesResp answers with names: listxattr.
type NamesResp struct{ Names []string }

func (m *NamesResp) fields(c *codec) { list(c, &m.Names, unlimited, 4, (*codec).string) }

// RedirectResp is the body of a reply whose status is EREMOTE.
type RedirectResp struct{ metadata.Redirect }

func (m *RedirectResp) fields(c *codec) {
	u64(c, &m.Dir)
	u64(c, &m.Epoch)
}

// MaxRevoked is the most keys in one RevokeReq.
const MaxRevoked = 1024

// LeasedEntryResp answers with an entry and the term of its lease.
type LeasedEntryResp struct {
	Entry metadata.Entry
	Lease metadata.Lease
}

func (m *LeasedEntryResp) fields(c *codec) {
	c.entry(&m.Entry)
	c.lease(&m.Lease)
}

// LeasedAttrResp answers with attributes and the term of their lease.
type LeasedAttrResp struct {
	Attr  metadata.Attr
	Lease metadata.Lease
}

func (m *LeasedAttrResp) fields(c *codec) {
	c.attr(&m.Attr)
	c.lease(&m.Lease)
}

// LeasedListingResp answers with the entries of a directory, at most MaxEntries, each with the term of its lease.
type LeasedListingResp struct{ metadata.LeasedListing }

func (m *LeasedListingResp) fields(c *codec) {
	c.attr(&m.Dir)
	c.lease(&m.Lease)
	list(c, &m.Entries, unlimited, entrySize+termsSize, func(c *codec, e *metadata.LeasedEntry) {
		c.entry(&e.Entry)
		c.millis(&e.EntryTerm)
		c.millis(&e.AttrTerm)
	})
}

// RevokeReq recalls at most MaxRevoked leases.
type RevokeReq struct{ Keys []metadata.LeaseKey }

func (m *RevokeReq) fields(c *codec) {
	list(c, &m.Keys, MaxRevoked, 8+4, func(c *codec, k *metadata.LeaseKey) {
		u64(c, &k.Ino)
		c.string(&k.Name)
	})
}

func (c *codec) lease(l *metadata.Lease) {
	c.millis(&l.Entry)
	c.millis(&l.Attr)
	u16(c, &l.Session.Home)
	u64(c, &l.Session.ID)
	c.millis(&l.Term)
}

// RenewLeaseReq renews a session.
type RenewLeaseReq struct{ Session uint64 }

func (m *RenewLeaseReq) fields(c *codec) { u64(c, &m.Session) }

// RenewLeaseResp returns the remaining term of the session; zero if it has ended.
type RenewLeaseResp struct{ Term time.Duration }

func (m *RenewLeaseResp) fields(c *codec) { c.millis(&m.Term) }

// millis rounds down to whole milliseconds, so that a lease never gets longer in transit.
func (c *codec) millis(d *time.Duration) {
	n := uint32(min(max(*d/time.Millisecond, 0), math.MaxUint32))
	u32(c, &n)
	if !c.encoding {
		*d = time.Duration(n) * time.Millisecond
	}
}
