package stagein

import (
	"io"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// items is what a scan has found. It can be gone through more than once.
type items interface {
	// each calls fn with every item in order; what fn gets is its own.
	each(fn func(it *source.Item) error) error
	count() int
}

// itemSlice is items in memory.
type itemSlice []source.Item

func (s itemSlice) each(fn func(it *source.Item) error) error {
	for _, it := range s {
		if err := fn(&it); err != nil {
			return err
		}
	}
	return nil
}

func (s itemSlice) count() int { return len(s) }

// inMemory brings items to memory.
func inMemory(x items) ([]source.Item, error) {
	if s, ok := x.(itemSlice); ok {
		return s, nil
	}
	all := make([]source.Item, 0, x.count())
	err := x.each(func(it *source.Item) error {
		all = append(all, *it)
		return nil
	})
	return all, err
}

// itemList is the members of a tar on the disk, each with where its headers begin.
// They are records in spools, one after another.
type itemList struct {
	scratch *manifest.Scratch
	maps    bool // those of sparse members are kept, for eachWhole
	parts   []listPart
	n       int
	closed  bool // the last of parts, for more
}

type listPart struct {
	spool *manifest.Spool
	maps  *manifest.Spool // of sparse members, in their order; nil is none
	skip  int             // of its records, that are not in the list
}

func newItemList(s *manifest.Scratch) *itemList { return &itemList{scratch: s, closed: true} }

func (l *itemList) count() int { return l.n }

func (l *itemList) add(it *source.Item, start int64) error {
	if l.closed {
		l.parts, l.closed = append(l.parts, listPart{spool: l.scratch.Spool()}), false
	}
	l.n++
	part := &l.parts[len(l.parts)-1]
	if it.Sparse != nil && l.maps {
		if part.maps == nil {
			part.maps = l.scratch.Spool()
		}
		if err := tar.EachExtent(it, part.maps.Add); err != nil {
			return err
		}
	}
	return part.spool.Add(manifest.Record{
		Path: it.Path, Target: it.Target, Hardlink: it.Hardlink,
		From: manifest.Origin{Source: it.Source, Off: it.Off, Head: it.Head, Check: it.Check, Sparse: it.Sparse != nil},
		Attr: metadata.Attr{
			Ino: metadata.Ino(start), Mode: it.Mode, Nlink: 1, UID: it.UID, GID: it.GID, Size: it.Size,
			Mtime: it.Mtime, Atime: it.Mtime, Ctime: metadata.Time(it.Stored()), // the times of access and change are not kept
		},
	})
}

// listed is the item of a record, and where its headers begin. Of where the data of a
// sparse one lies it has only how much that is.
func listed(r *manifest.Record) (it source.Item, start int64) {
	it = source.Item{
		Path: r.Path, Mode: r.Attr.Mode, UID: r.Attr.UID, GID: r.Attr.GID, Size: r.Attr.Size, Mtime: r.Attr.Mtime,
		Target: r.Target, Hardlink: r.Hardlink,
		Off: r.From.Off, Source: r.From.Source, Head: r.From.Head, Check: r.From.Check,
	}
	if r.From.Sparse {
		it.Sparse = &source.Sparse{Size: it.Size, Stored: int64(r.Attr.Ctime)}
	}
	return it, int64(r.Attr.Ino)
}

// each implements items.
func (l *itemList) each(fn func(it *source.Item) error) error {
	return l.eachOf(func(_ *mapReader, it *source.Item) error { return fn(it) })
}

// eachWhole is each, with where the data of sparse members lies in them.
func (l *itemList) eachWhole(fn func(it *source.Item) error) error {
	return l.eachOf(func(maps *mapReader, it *source.Item) error {
		if it.Sparse != nil {
			if err := maps.read(it); err != nil {
				return err
			}
		}
		return fn(it)
	})
}

func (l *itemList) eachOf(fn func(maps *mapReader, it *source.Item) error) error {
	for _, p := range l.parts {
		maps := &mapReader{spool: p.maps}
		r, err := p.spool.Read()
		for i := 0; err == nil; i++ {
			var rec manifest.Record
			if rec, err = r.Next(); err != nil || i < p.skip {
				continue
			}
			it, _ := listed(&rec)
			err = fn(maps, &it)
		}
		if err != io.EOF {
			return err
		}
	}
	l.closed = true
	return nil
}

// take appends what s, which then is empty, has from its nth record on.
func (l *itemList) take(s *itemList, n int) {
	for _, p := range s.parts {
		l.parts = append(l.parts, listPart{p.spool, p.maps, p.skip + n}) // s is a stretch, of one part
	}
	l.n += s.n - n
	l.closed = true
	s.parts, s.n, s.closed = nil, 0, true
}

func (l *itemList) close() {
	if l == nil {
		return
	}
	for _, p := range l.parts {
		p.spool.Close()
		if p.maps != nil {
			p.maps.Close()
		}
	}
	l.parts, l.n, l.closed = nil, 0, true
}

// mapReader goes through the maps of sparse members.
type mapReader struct {
	spool *manifest.Spool // nil is none
	r     *manifest.Reader
	rec   manifest.Record // that comes next, if there is
	err   error           // why there is none
}

// read gives an item its map. Items come in the order of the archive, and those of some
// may have been left out.
func (m *mapReader) read(it *source.Item) error {
	end := it.Off + it.Sparse.Stored
	for it.Sparse.Stored > 0 && m.next() && m.rec.From.Off < end {
		if m.rec.From.Off >= it.Off {
			it.Sparse.Extents = append(it.Sparse.Extents, tar.ExtentOf(it, &m.rec))
		}
		m.rec = manifest.Record{}
	}
	if m.err != nil && m.err != io.EOF {
		return m.err
	}
	return it.Sparse.Check()
}

// next reports whether rec is a record, and makes it one.
func (m *mapReader) next() bool {
	if m.rec.From.Off > 0 || m.err != nil || m.spool == nil {
		return m.rec.From.Off > 0
	}
	if m.r == nil {
		m.r, m.err = m.spool.Read()
	}
	if m.err == nil {
		m.rec, m.err = m.r.Next()
	}
	return m.err == nil
}
