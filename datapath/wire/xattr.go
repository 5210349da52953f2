package wire

import "github.com/bivouacfs/bivouac/metadata"

// XattrReq names an extended attribute: getxattr, removexattr.
type XattrReq struct {
	Ino  metadata.Ino
	Name string
}

// Append appends the encoding of m to b.
func (m XattrReq) Append(b []byte) []byte { return appendString(appendIno(b, m.Ino), m.Name) }

// Parse decodes b into m.
func (m *XattrReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = XattrReq{Ino: d.ino(), Name: d.string()}
	return d.done("attribute request")
}

// SetxattrReq asks for an extended attribute to be set.
type SetxattrReq struct {
	Ino   metadata.Ino
	Xattr metadata.Xattr
}

// Append appends the encoding of m to b.
func (m SetxattrReq) Append(b []byte) []byte {
	b = append(appendIno(b, m.Ino), uint8(m.Xattr.Mode))
	b = appendString(b, m.Xattr.Name)
	return appendBytes(b, m.Xattr.Value)
}

// Parse decodes b into m.
func (m *SetxattrReq) Parse(b []byte) error {
	d := decoder{b: b}
	*m = SetxattrReq{Ino: d.ino(), Xattr: metadata.Xattr{Mode: metadata.XattrMode(d.u8()), Name: d.string(), Value: d.bytes()}}
	return d.done("setxattr request")
}

// BytesResp answers with bytes: getxattr.
type BytesResp struct {
	B []byte
}

// Append appends the encoding of m to b.
func (m BytesResp) Append(b []byte) []byte { return appendBytes(b, m.B) }

// Parse decodes b into m.
func (m *BytesResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.B = d.bytes()
	return d.done("bytes")
}

// NamesResp answers with names: listxattr.
type NamesResp struct {
	Names []string
}

// Append appends the encoding of m to b.
func (m NamesResp) Append(b []byte) []byte {
	b = appendU32(b, uint32(len(m.Names)))
	for _, n := range m.Names {
		b = appendString(b, n)
	}
	return b
}

// Parse decodes b into m.
func (m *NamesResp) Parse(b []byte) error {
	d := decoder{b: b}
	m.Names = nil
	n := d.u32()
	if uint64(n)*4 > uint64(len(d.b)) {
		d.bad = true
	}
	for range n {
		if d.bad {
			break
		}
		m.Names = append(m.Names, d.string())
	}
	return d.done("names")
}

func (d *decoder) bytes() []byte {
	if s := d.string(); s != "" {
		return []byte(s)
	}
	return nil
}

func appendBytes(b, v []byte) []byte { return append(appendU32(b, uint32(len(v))), v...) }
