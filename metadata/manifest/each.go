package manifest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Each calls fn with the path and attributes of every name of a regular file, in the order of a manifest, until fn
// returns false.
func (t *Table) Each(fn func(path string, a metadata.Attr) bool) error {
	paths := map[uint32]string{0: ""} // of the directories, by number
	var bad error
	err := t.kv.Scan([]byte{keyEntry}, []byte{keyEntry + 1}, func(k, v []byte) bool {
		var a metadata.Attr
		if a, bad = parseEntry(t.ds, v); bad != nil || len(k) < 6 {
			return false
		}
		path := strings.TrimPrefix(paths[binary.BigEndian.Uint32(k[1:])]+"/"+string(k[5:]), "/")
		if isDir(a.Mode) {
			paths[a.Ino.Seq()] = path
			return true
		}
		return fileType(a.Mode) != syscall.S_IFREG || fn(path, a)
	})
	if err = errors.Join(bad, err); err != nil {
		return fmt.Errorf("files of dataset %d: %w", t.ds, err)
	}
	return nil
}
