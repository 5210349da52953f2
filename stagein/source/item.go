package source

import (
	"encoding/json"
	"unicode/utf8"

	"github.com/bivouacfs/bivouac/metadata"
)

// Item is one thing in a source: a file, a directory, or a link.
type Item struct {
	Path     string // relative to the dataset's root, clean; "" is the root
	Mode     uint32 // type and permissions
	UID      uint32 // in the source; who owns it when staged is the plan's business
	GID      uint32
	Size     int64 // bytes of data
	Mtime    metadata.Time
	Target   string // of a symbolic link
	Hardlink string // the path of the item that this is another name of
	Off      int64  // where the data begins in a tar, or the header in a zip archive
	Source   uint32 // which of several archives it is in
	// Head is how many bytes before Off nobody has read yet: the headers, of which
	// an index told. Check is the digest of what they have to say.
	Head  int64
	Check uint64
	Zip   ZipMember
	// Sparse is where the data lies in a sparse file; nil is in one piece. Head is
	// then how long the headers before Off are, which tell it.
	Sparse *Sparse
}

// Stored is how many bytes of data an item has in a tar.
func (i *Item) Stored() int64 {
	if i.Sparse != nil {
		return i.Sparse.Stored
	}
	return i.Size
}

// Is reports whether the item has the given type. A hard link has none that
// counts: ask for Hardlink first.
func (i *Item) Is(typ uint32) bool { return i.Mode&TypeMask == typ }

// itemJSON is Item in JSON. Names are bytes, which JSON strings are not: what
// is not UTF-8 travels as base64 beside it.
type itemJSON struct {
	Path     *Name         `json:"path,omitempty"`
	Mode     uint32        `json:"mode"`
	UID      uint32        `json:"uid,omitempty"`
	GID      uint32        `json:"gid,omitempty"`
	Size     int64         `json:"size,omitempty"`
	Mtime    metadata.Time `json:"mtime,omitempty"`
	Target   *Name         `json:"target,omitempty"`
	Hardlink *Name         `json:"hardlink,omitempty"`
	Off      int64         `json:"off,omitempty"`
	Source   uint32        `json:"source,omitempty"`
	Zip      ZipMember     `json:"zip,omitzero"`
}

// MarshalJSON keeps names that are not UTF-8.
func (i Item) MarshalJSON() ([]byte, error) {
	return json.Marshal(itemJSON{
		Path: nameOf(i.Path), Mode: i.Mode, UID: i.UID, GID: i.GID, Size: i.Size, Mtime: i.Mtime,
		Target: nameOf(i.Target), Hardlink: nameOf(i.Hardlink), Off: i.Off, Source: i.Source, Zip: i.Zip,
	})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (i *Item) UnmarshalJSON(b []byte) error {
	var j itemJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*i = Item{
		Path: j.Path.string(), Mode: j.Mode, UID: j.UID, GID: j.GID, Size: j.Size, Mtime: j.Mtime,
		Target: j.Target.string(), Hardlink: j.Hardlink.string(), Off: j.Off, Source: j.Source, Zip: j.Zip,
	}
	return nil
}

// Name is a path or a name that survives JSON even if it is not UTF-8: then it
// is an object with the bytes in base64, else a plain string.
type Name string

func nameOf(s string) *Name {
	if s == "" {
		return nil
	}
	n := Name(s)
	return &n
}

func (n *Name) string() string {
	if n == nil {
		return ""
	}
	return string(*n)
}

type rawName struct {
	Bytes []byte `json:"bytes"`
}

// MarshalJSON makes a string, or an object if n is not UTF-8.
func (n Name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(rawName{[]byte(n)})
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (n *Name) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var r rawName
		err := json.Unmarshal(b, &r)
		*n = Name(r.Bytes)
		return err
	}
	var s string
	err := json.Unmarshal(b, &s)
	*n = Name(s)
	return err
}

// ZipMember is how an item lies in a zip archive. Item.Off is where its local
// header begins.
type ZipMember struct {
	Size   int64  `json:"size,omitempty"` // of the data in the archive, in bytes
	Method uint16 `json:"method,omitempty"`
	CRC    uint32 `json:"crc,omitempty"`  // CRC-32 of what is unpacked
	Name   uint32 `json:"name,omitempty"` // CRC-32 of the name as it is in both headers
	Span   int64  `json:"span,omitempty"` // bytes behind the fixed part of its local header, to what follows at the most
}
