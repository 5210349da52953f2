package erofs

import (
	"encoding/binary"
	"syscall"
)

// dirBlock is a directory block that is being filled.
type dirBlock struct {
	heads, names []byte
	dots         int // number of "." and ".." written
}

func (d *dirBlock) fits(name string) bool {
	return len(d.heads)+headSize+len(d.names)+len(name) <= blockSize
}

// add adds a name. Name offsets count from the first name until take.
func (d *dirBlock) add(name string, id NodeID, mode uint32) {
	d.heads = binary.LittleEndian.AppendUint64(d.heads, uint64(id))
	d.heads = binary.LittleEndian.AppendUint16(d.heads, uint16(len(d.names)))
	d.heads = append(d.heads, fileType(mode), 0)
	d.names = append(d.names, name...)
}

// take appends the finished block to b and starts an empty one.
func (d *dirBlock) take(b []byte) []byte {
	for i := 8; i < len(d.heads); i += headSize {
		at := binary.LittleEndian.Uint16(d.heads[i:])
		binary.LittleEndian.PutUint16(d.heads[i:], at+uint16(len(d.heads)))
	}
	b = append(append(b, d.heads...), d.names...)
	d.heads, d.names = d.heads[:0], d.names[:0]
	return b
}

func fileType(mode uint32) byte {
	switch mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		return 1
	case syscall.S_IFDIR:
		return 2
	case syscall.S_IFLNK:
		return 7
	}
	return 0
}
