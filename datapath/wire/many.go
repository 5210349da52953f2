package wire

import (
	"fmt"
	"syscall"
)

// MaxFiles is the most files in one OpReadMany.
const MaxFiles = 256

// ReadManyReq reads ranges of files that have no copies, at most MaxMany bytes together.
type ReadManyReq struct {
	Summed bool      // the reply has checksums
	Files  []ReadReq // at most MaxFiles
}

func (m *ReadManyReq) fields(c *codec) {
	c.bool(&m.Summed)
	list(c, &m.Files, MaxFiles, 8+8+4, func(c *codec, r *ReadReq) { r.fields(c) })
}

// Check returns the most bytes that the reply can have, or EINVAL for a request that no node serves.
func (m *ReadManyReq) Check() (int64, error) {
	var all int64
	for _, r := range m.Files {
		if r.Ino.Copied() || r.Off < 0 {
			return 0, fmt.Errorf("inode %v at %d among many: %w", r.Ino, r.Off, syscall.EINVAL)
		}
		all += int64(r.Len)
	}
	if all > MaxMany {
		return 0, fmt.Errorf("read of %d bytes of many files: %w", all, syscall.EINVAL)
	}
	return all, nil
}

// ManyFile is the reply for one file.
type ManyFile struct {
	Status syscall.Errno // then there are no bytes: EAGAIN if they are not fetched yet
	Len    uint32
	Sum    uint32 // of the bytes, if the request wants sums
}

// ReadManyResp answers for each file of the request, in its order.
type ReadManyResp struct{ Files []ManyFile }

func (m *ReadManyResp) fields(c *codec) {
	list(c, &m.Files, MaxFiles, 2+4+4, func(c *codec, f *ManyFile) {
		u16(c, &f.Status)
		u32(c, &f.Len)
		u32(c, &f.Sum)
	})
}

// Split calls fn with the answer for each file of q and its bytes. EPROTO: the answer belongs to another request, or
// its lengths do not match the data.
func (m *ReadManyResp) Split(q *ReadManyReq, data []byte, fn func(i int, f *ManyFile, b []byte)) error {
	if len(m.Files) != len(q.Files) {
		return fmt.Errorf("%d of %d files answered: %w", len(m.Files), len(q.Files), syscall.EPROTO)
	}
	var all uint64
	for i, f := range m.Files {
		if f.Len > q.Files[i].Len || f.Status != 0 && f.Len > 0 {
			return fmt.Errorf("%d bytes of file %d with status %d, %d wanted: %w", f.Len, i, f.Status, q.Files[i].Len, syscall.EPROTO)
		}
		all += uint64(f.Len)
	}
	if all != uint64(len(data)) {
		return fmt.Errorf("files of %d bytes in %d bytes of data: %w", all, len(data), syscall.EPROTO)
	}
	for i := range m.Files {
		f := &m.Files[i]
		fn(i, f, data[:f.Len:f.Len])
		data = data[f.Len:]
	}
	return nil
}
