package wire

import "github.com/bivouacfs/bivouac/metadata"

// Message is what every request and reply of the hot ops is. Append appends
// the encoding to b; Parse decodes all of b, keeps nothing of it, and fails
// with ErrMalformed, after which the message's fields mean nothing.
type Message interface {
	Append(b []byte) []byte
	Parse(b []byte) error
}

// DirName asks for a name in a directory: lookup, unlink, rmdir.
type DirName struct {
	Dir  metadata.Ino
	Name string
}

// Append appends the encoding of m to b.
func (m DirName) Append(b []byte) []byte { return appendString(appendIno(b, m.Dir), m.Name) }

// Parse decodes b into m.
func (m *DirName) Parse(b []byte) error {
	d := decoder{b: b}
	*m = DirName{Dir: d.ino(), Name: d.string()}
	return d.done("directory and name")
}

// CreateReq asks for a new inode under a name: create, mkdir.
type CreateReq struct {
	Dir  metadata.Ino
	Name string
	New  metadata.New
}

// Append appends the encoding of m to b.
func (m CreateReq) Append(b []byte) []byte {
	return appendNew(appendString(appendIno(b, m.Dir), m.Name), &m.New)
}

// Parse decodes b into m.
func (m *CreateReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = CreateReq{Dir: d.ino(), Name: d.string(), New: d.new()}
	return d.done("create request")
}

// RenameReq asks for a rename.
type RenameReq struct {
	metadata.Rename
}

// Append appends the encoding of m to b.
func (m RenameReq) Append(b []byte) []byte {
	b = appendString(appendIno(b, m.Dir), m.Name)
	b = appendString(appendIno(b, m.NewDir), m.NewName)
	return appendU32(b, uint32(m.Flags))
}

// Parse decodes b into m.
func (m *RenameReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Rename = metadata.Rename{
		Dir: d.ino(), Name: d.string(),
		NewDir: d.ino(), NewName: d.string(),
		Flags: metadata.RenameFlags(d.u32()),
	}
	return d.done("rename request")
}

// ReadDirReq asks for entries of a directory. Who answers cuts Limit to
// MaxEntries.
type ReadDirReq struct {
	Dir   metadata.Ino
	After string
	Limit uint32
}

// Append appends the encoding of m to b.
func (m ReadDirReq) Append(b []byte) []byte {
	return appendU32(appendString(appendIno(b, m.Dir), m.After), m.Limit)
}

// Parse decodes b into m.
func (m *ReadDirReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = ReadDirReq{Dir: d.ino(), After: d.string(), Limit: d.u32()}
	return d.done("readdir request")
}

// InoReq names an inode: getattr, readlink, reap, sync, remove-object.
type InoReq struct {
	Ino metadata.Ino
}

// Append appends the encoding of m to b.
func (m InoReq) Append(b []byte) []byte { return appendIno(b, m.Ino) }

// Parse decodes b into m.
func (m *InoReq) Parse(b []byte) error {
	d := decoder{b: b}
	m.Ino = d.ino()
	return d.done("inode request")
}

// SetattrReq asks for a change of attributes.
type SetattrReq struct {
	Ino    metadata.Ino
	Change metadata.Change
}

// Append appends the encoding of m to b.
func (m SetattrReq) Append(b []byte) []byte { return appendChange(appendIno(b, m.Ino), &m.Change) }

// Parse decodes b into m.
func (m *SetattrReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = SetattrReq{Ino: d.ino(), Change: d.change()}
	return d.done("setattr request")
}

// LinkReq asks for one more name of an inode.
type LinkReq struct {
	Ino  metadata.Ino
	Dir  metadata.Ino
	Name string
}

// Append appends the encoding of m to b.
func (m LinkReq) Append(b []byte) []byte {
	return appendString(appendIno(appendIno(b, m.Ino), m.Dir), m.Name)
}

// Parse decodes b into m.
func (m *LinkReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = LinkReq{Ino: d.ino(), Dir: d.ino(), Name: d.string()}
	return d.done("link request")
}
