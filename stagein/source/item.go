package source

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/bivouacfs/bivouac/metadata"
)

// Item is an entry of a source: a file, a directory or a link.
type Item struct {
	Path     string // relative to the dataset's root, clean; "" is the root
	Mode     uint32 // type and permissions
	UID      uint32 // in the source; the plan determines the owner of the staged item
	GID      uint32
	Size     int64 // bytes of data
	Mtime    metadata.Time
	Target   string // of a symbolic link
	Hardlink string // path of the item of which this is another name
	Off      int64  // offset of the data in a tar, or of the local header in a zip archive
	Source   uint32 // index of its archive if there are several
	// Head is the size of the headers before Off if they have not been read, because the item came from an index. Check
	// is their expected digest.
	Head  int64
	Check uint64
	Zip   ZipMember
	// Sparse is the data map of a sparse file, nil for any other. Head is then the size of the headers, which
	// contain the map.
	Sparse *Sparse
}

// Stored returns the number of bytes of the item's data in a tar.
func (i *Item) Stored() int64 {
	if i.Sparse != nil {
		return i.Sparse.Stored
	}
	return i.Size
}

// Is reports whether the item has the given type. It is meaningless for a hard link: check Hardlink first.
func (i *Item) Is(typ uint32) bool { return i.Mode&TypeMask == typ }

// MoveUnder moves an item of an archive into the directory dir of the dataset, unless that is "".
func (i *Item) MoveUnder(dir string) {
	if dir == "" {
		return
	}
	i.Path = strings.TrimSuffix(dir+"/"+i.Path, "/")
	if i.Hardlink != "" {
		i.Hardlink = dir + "/" + i.Hardlink
	}
}

// itemJSON is the JSON form of Item. Names are bytes: a name that is not UTF-8 is encoded as base64.
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

// MarshalJSON implements json.Marshaler. It preserves names that are not UTF-8.
func (i Item) MarshalJSON() ([]byte, error) {
	return json.Marshal(itemJSON{
		Path: nameOf(i.Path), Mode: i.Mode, UID: i.UID, GID: i.GID, Size: i.Size, Mtime: i.Mtime,
		Target: nameOf(i.Target), Hardlink: nameOf(i.Hardlink), Off: i.Off, Source: i.Source, Zip: i.Zip,
	})
}

// UnmarshalJSON implements json.Unmarshaler.
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

// Name is a path or name that survives JSON: a string if it is UTF-8, otherwise an object with the bytes in base64.
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

// MarshalJSON implements json.Marshaler.
func (n Name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(rawName{[]byte(n)})
}

// UnmarshalJSON implements json.Unmarshaler.
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

// ZipMember describes an item in a zip archive. Item.Off is the offset of its local header.
type ZipMember struct {
	Size   int64  `json:"size,omitempty"` // of the data in the archive, in bytes
	Method uint16 `json:"method,omitempty"`
	CRC    uint32 `json:"crc,omitempty"`  // CRC-32 of the unpacked data
	Name   uint32 `json:"name,omitempty"` // CRC-32 of the raw name, which both headers have
	Span   int64  `json:"span,omitempty"` // bound on the bytes from the local header's fixed part to the member's end
}
