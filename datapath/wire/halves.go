package wire

import "github.com/bivouacfs/bivouac/metadata"

// NewDirReq asks for a directory inode that no entry names yet.
type NewDirReq struct {
	Parent metadata.Ino
	New    metadata.New
}

// Append appends the encoding of m to b.
func (m NewDirReq) Append(b []byte) []byte { return appendNew(appendIno(b, m.Parent), &m.New) }

// Parse decodes b into m.
func (m *NewDirReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = NewDirReq{Parent: d.ino(), New: d.new()}
	return d.done("newdir request")
}

// EnterReq asks for an entry whose inode may be homed elsewhere.
type EnterReq struct {
	Dir     metadata.Ino
	Entry   metadata.Entry
	Replace bool
}

// Append appends the encoding of m to b.
func (m EnterReq) Append(b []byte) []byte {
	return appendBool(appendEntry(appendIno(b, m.Dir), &m.Entry), m.Replace)
}

// Parse decodes b into m.
func (m *EnterReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = EnterReq{Dir: d.ino(), Entry: d.entry(newAttr), Replace: d.bool()}
	return d.done("enter request")
}

// RemoveReq takes an entry out that names Ino.
type RemoveReq struct {
	Dir  metadata.Ino
	Name string
	Ino  metadata.Ino
}

// Append appends the encoding of m to b.
func (m RemoveReq) Append(b []byte) []byte {
	return appendIno(appendString(appendIno(b, m.Dir), m.Name), m.Ino)
}

// Parse decodes b into m.
func (m *RemoveReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = RemoveReq{Dir: d.ino(), Name: d.string(), Ino: d.ino()}
	return d.done("remove request")
}

// RelinkReq changes a link count.
type RelinkReq struct {
	Ino   metadata.Ino
	Delta int32
}

// Append appends the encoding of m to b.
func (m RelinkReq) Append(b []byte) []byte { return appendU32(appendIno(b, m.Ino), uint32(m.Delta)) }

// Parse decodes b into m.
func (m *RelinkReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = RelinkReq{Ino: d.ino(), Delta: int32(d.u32())}
	return d.done("relink request")
}
