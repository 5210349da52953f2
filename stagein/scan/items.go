package scan

import (
	"io"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// items are the items found by a scan. They can be iterated more than once.
type items interface {
	// each calls fn with a copy of every item, in order.
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

// inMemory returns items as a slice.
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

// itemList holds the members of a tar, with the offsets of their headers, as records in spools on disk.
type itemList struct {
	scratch *manifest.Scratch
	parts   []listPart
	n       int
	closed  bool // add starts another part
}

type listPart struct {
	spool *manifest.Spool
	skip  int // number of its first records that are not in the list
}

func newItemList(s *manifest.Scratch) *itemList { return &itemList{scratch: s, closed: true} }

func (l *itemList) count() int { return l.n }

func (l *itemList) add(it *source.Item, start int64) error {
	if l.closed {
		l.parts, l.closed = append(l.parts, listPart{spool: l.scratch.Spool()}), false
	}
	l.n++
	part := &l.parts[len(l.parts)-1]
	return part.spool.Add(manifest.Record{
		Path: it.Path, Target: it.Target, Hardlink: it.Hardlink,
		From: manifest.Origin{Source: it.Source, Off: it.Off, Head: it.Head, Check: it.Check},
		Attr: metadata.Attr{
			Ino: metadata.Ino(start), Mode: it.Mode, Nlink: 1, UID: it.UID, GID: it.GID, Size: it.Size,
			Mtime: it.Mtime, Atime: it.Mtime, Ctime: it.Mtime, // access and change times are not kept
		},
	})
}

// listed returns the item of a record, and the offset of its headers.
func listed(r *manifest.Record) (it source.Item, start int64) {
	it = source.Item{
		Path: r.Path, Mode: r.Attr.Mode, UID: r.Attr.UID, GID: r.Attr.GID, Size: r.Attr.Size, Mtime: r.Attr.Mtime,
		Target: r.Target, Hardlink: r.Hardlink,
		Off: r.From.Off, Source: r.From.Source, Head: r.From.Head, Check: r.From.Check,
	}
	return it, int64(r.Attr.Ino)
}

// each implements items.
func (l *itemList) each(fn func(it *source.Item) error) error {
	for _, p := range l.parts {
		r, err := p.spool.Read()
		for i := 0; err == nil; i++ {
			var rec manifest.Record
			if rec, err = r.Next(); err != nil || i < p.skip {
				continue
			}
			it, _ := listed(&rec)
			err = fn(&it)
		}
		if err != io.EOF {
			return err
		}
	}
	l.closed = true
	return nil
}

// take moves the records of s from the nth to the end of l. s is then empty.
func (l *itemList) take(s *itemList, n int) {
	for _, p := range s.parts {
		l.parts = append(l.parts, listPart{p.spool, p.skip + n}) // s is a segment, with one part
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
	}
	l.parts, l.n, l.closed = nil, 0, true
}
