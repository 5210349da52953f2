package dataset

import (
	"context"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/daemon/replicas"
	"github.com/bivouacfs/bivouac/datapath/rpc"
	"github.com/bivouacfs/bivouac/datapath/wire"
)

// manyRead builds the answer to a read of many files.
type manyRead struct {
	s      *Server
	q      wire.ReadManyReq
	files  []wire.ManyFile
	at     []replicas.Location
	parts  []rpc.Part
	copies []byte   // memory for the files that are copied, not lent
	done   []func() // release the lent files
}

// onReadMany answers a read-ahead of small files by another node. A file that is not fetched yet, or is damaged, gets
// its own error; the other files are sent.
func (s *Server) onReadMany(ctx context.Context, r *rpc.Request, resp *rpc.Response) error {
	m := manyRead{s: s}
	if err := wire.Parse(r.Body, &m.q); err != nil {
		return err
	}
	if _, err := m.q.Check(); err != nil {
		return err
	}
	m.files, m.parts = make([]wire.ManyFile, len(m.q.Files)), make([]rpc.Part, len(m.q.Files))
	m.at = make([]replicas.Location, len(m.q.Files))
	sent, copied := m.present()
	if sent > 0 {
		if err := s.admit(ctx, m.q.Files[0].Ino, sent); err != nil {
			return err
		}
	}
	var err error
	if copied > 0 {
		if m.copies, err = resp.Alloc(ctx, int(copied)); err != nil {
			return err
		}
	}
	resp.Done = m.release
	m.each(func(i int) error { return m.copy(ctx, i) })
	m.each(m.lend) // last: no descriptor is held while a copy waits
	resp.Parts, resp.Body = m.parts, &wire.ReadManyResp{Files: m.files}
	return nil
}

// present counts the bytes of the files that are here, and how many of these bytes are copied. Other files get EAGAIN.
func (m *manyRead) present() (sent, copied int64) {
	for i, q := range m.q.Files {
		n := int64(q.Len)
		var ok bool
		if m.at[i], ok = m.s.fills.present(q.Ino, q.Off, n); !ok {
			m.files[i].Status = syscall.EAGAIN
			continue
		}
		if sent += n; !m.lends(i) {
			copied += n
		}
	}
	return sent, copied
}

// lends reports whether a file is sent from its descriptor. Files outside of datasets may be truncated meanwhile, and a
// summed read needs the bytes for the checksum: both are copied.
func (m *manyRead) lends(i int) bool {
	q := m.q.Files[i]
	return !m.q.Summed && q.Ino.Sealed() && q.Len >= lendFrom
}

// each calls do for each file without an error, and records the errors of do.
func (m *manyRead) each(do func(i int) error) {
	for i := range m.files {
		f := &m.files[i]
		if f.Status != 0 {
			continue
		}
		if err := do(i); err != nil {
			var known bool
			if f.Status, known = rpc.StatusOf(err); !known {
				m.s.log.Log().WithError(err).Warn("read failed with an error that has no errno: the reader gets EIO")
			}
			f.Len, m.parts[i] = 0, rpc.Part{}
		}
	}
}

// copy adds the bytes of a file that is not lent.
func (m *manyRead) copy(ctx context.Context, i int) error {
	if m.lends(i) {
		return nil
	}
	n := int64(m.q.Files[i].Len)
	b := m.copies[:n:n]
	m.copies = m.copies[n:]
	if m.q.Summed {
		if err := m.s.check.verify(ctx, m.at[i], n); err != nil {
			return err
		}
	}
	k, err := m.s.store.ReadAt(ctx, m.at[i].Object, b, m.at[i].Off)
	if err != nil {
		return err
	}
	m.files[i].Len = uint32(k)
	if m.q.Summed {
		m.files[i].Sum = wire.Sum(b[:k])
	}
	m.parts[i].Data = b[:k]
	return nil
}

// lend adds a file by its descriptor.
func (m *manyRead) lend(i int) error {
	if !m.lends(i) {
		return nil
	}
	q := &m.q.Files[i]
	off := m.at[i].Off
	f, done, err := m.s.store.TryLend(m.at[i].Object)
	switch {
	case err != nil:
		return err
	case f == nil:
		return fmt.Errorf("inode %v: no descriptor to lend: %w", q.Ino, syscall.EAGAIN)
	}
	m.done = append(m.done, done)
	n, err := rpc.Clamp(f, off, int64(q.Len))
	if err != nil {
		return err
	}
	m.files[i].Len, m.parts[i] = uint32(n), rpc.Part{File: f, Off: off, Len: n}
	return nil
}

func (m *manyRead) release() {
	for _, done := range m.done {
		done()
	}
}
