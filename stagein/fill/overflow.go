package fill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
)

// ErrOverflow reports that this node owns a piece that does not fit here: ReadOverflow reads it from the source.
var ErrOverflow = fmt.Errorf("no room on this node: %w", syscall.ENOSPC)

// errNoRoom reports that a piece was not even read, because it does not fit.
var errNoRoom = fmt.Errorf("file does not fit on this node: %w", syscall.ENOSPC)

// Overflow counts the part of a dataset that a node owns but cannot store.
type Overflow struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// overflow tracks the pieces that this node owns but cannot store: they belonged to lost nodes, or their room was
// used meanwhile. Their owner reads them through from the source, for all nodes.
type overflow struct {
	mu     sync.Mutex
	pieces *pieceSet                 // guarded by mu
	files  map[metadata.Ino]struct{} // guarded by mu; only striped files
	sum    Overflow                  // guarded by mu
}

func newOverflow() *overflow {
	d := new(overflow)
	d.reset()
	return d
}

// reset empties the set: the next pass tries each piece again.
func (d *overflow) reset() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pieces, d.files, d.sum = newPieceSet(), make(map[metadata.Ino]struct{}), Overflow{}
}

func (d *overflow) has(p PieceID) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.sum.Files > 0 && d.pieces.has(p)
}

// add records a piece of n bytes.
func (d *overflow) add(p PieceID, n int64, striped bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.pieces.add(p) {
		return
	}
	d.sum.Bytes += n
	if _, known := d.files[p.Ino]; known {
		return
	}
	if striped {
		d.files[p.Ino] = struct{}{}
	}
	d.sum.Files++
}

// Overflow returns the pieces that this node owns but cannot store, and reads through instead, as totals.
func (f *Fill) Overflow() Overflow {
	f.overflow.mu.Lock()
	defer f.overflow.mu.Unlock()
	return f.overflow.sum
}

// Overflowed reports whether a file that is whole on one node has overflowed here.
func (f *Fill) Overflowed(ino metadata.Ino) bool { return f.overflow.has(PieceID{Ino: ino}) }

// hasRoom reports whether n more bytes of a file fit.
func (f *Fill) hasRoom(ino metadata.Ino, n int64) bool {
	return f.cfg.Room == nil || f.cfg.Room(ino, n)
}

// fits returns a function that reports, for each piece of an offer, whether there is room for it. It looks up sizes
// only if there is little room.
func (f *Fill) fits(ps []PieceID) func(i int) bool {
	if f.hasRoom(0, int64(len(ps))*largePiece) {
		return func(int) bool { return true }
	}
	fit := make([]bool, len(ps))
	m, _ := f.cfg.Watch()
	all := int64(0)
	for i, p := range ps {
		_, a, err := f.cfg.Files.Origin(p.Ino)
		s := placementOf(m, a)
		if err != nil || len(s.order) == 0 || p.Chunk >= s.pieces() {
			continue
		}
		_, n, _ := s.at(p.Chunk, f.cfg.Self)
		if fit[i] = f.hasRoom(p.Ino, all+stagein.Pages(n)); fit[i] { // an offered piece is never sparse
			all += stagein.Pages(n)
		}
	}
	return func(i int) bool { return fit[i] }
}

// fitting returns the parts that fit, reserving room for p first.
func (f *Fill) fitting(parts []*item, p PieceID) []*item {
	all := int64(0)
	takes := func(x *item) int64 {
		if x.sparse {
			return 0 // unknown
		}
		return stagein.Pages(x.n)
	}
	for _, x := range parts {
		if x.PieceID == p {
			all = takes(x)
		}
	}
	var fit []*item
	for _, x := range parts {
		n := takes(x)
		if x.PieceID == p {
			n = 0 // already counted
		}
		if x.PieceID == p || f.hasRoom(x.Ino, all+n) {
			fit, all = append(fit, x), all+n
		}
	}
	return fit
}

// moveToOverflow makes a piece that does not fit an overflow piece, and reports whether it can be read through. It
// removes partial data if the file has no other piece. The caller holds the piece's flight.
func (f *Fill) moveToOverflow(p PieceID) bool {
	from, a, err := f.cfg.Files.Origin(p.Ino)
	if err != nil || !f.reachable(from) {
		return false
	}
	m, _ := f.cfg.Watch()
	s := placementOf(m, a)
	if len(s.order) == 0 || p.Chunk >= s.pieces() {
		return false
	}
	if s.pieces() == 1 && f.cfg.Drop != nil {
		if err := f.cfg.Drop(f.ctx, p.Ino); err != nil {
			f.cfg.Log.WithError(err).WithField("inode", p.Ino).Debug("partial data of an overflow file could not be removed")
		}
	}
	_, n, _ := s.at(p.Chunk, f.cfg.Self)
	f.overflow.add(p, n, s.pieces() > 1)
	return true
}

// reachable reports whether a file can be read in its source without unpacking everything before it.
func (f *Fill) reachable(from manifest.Origin) bool {
	kind, err := f.src.KindOf(from)
	return err == nil && from.Known() && !kind.Packed()
}

// extent is a contiguous part of this node's object.
type extent struct {
	PieceID
	size     int64 // of the piece
	at       int64 // where the piece begins in the object
	from, to int64 // wanted range in the object
}

// extents cuts [off, off+n) of this node's object of the file a into extents.
func (f *Fill) extents(a *metadata.Attr, off, n int64) []extent {
	m, _ := f.cfg.Watch()
	s := placementOf(m, *a)
	var all []extent
	for _, chunk := range s.overlapping(f.cfg.Self, off, n) {
		if chunk >= s.pieces() {
			break
		}
		_, size, at := s.at(chunk, f.cfg.Self)
		x := extent{PieceID{a.Ino, chunk}, size, at, max(off, at), min(off+n, at+size)}
		if x.from < x.to {
			all = append(all, x)
		}
	}
	return all
}

// WarmOverflow returns once the cache has the pieces that ReadOverflow needs for a range.
func (f *Fill) WarmOverflow(ctx context.Context, ino metadata.Ino, off, n int64) error {
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil {
		return err
	}
	for _, x := range f.extents(&a, off, n) {
		if !f.present.has(x.PieceID) {
			if err := f.viewOverflow(ctx, &a, &x, func([]byte) {}); err != nil {
				return err
			}
		}
	}
	return nil
}

// ReadOverflow fills p from offset off of this node's object of ino after Need has returned ErrOverflow. It reads
// overflow pieces from the source through the cache, and the others from this node.
func (f *Fill) ReadOverflow(ctx context.Context, ino metadata.Ino, p []byte, off int64, here func(p []byte, off int64) (int, error)) (n int, err error) {
	_, a, err := f.cfg.Files.Origin(ino)
	if err != nil {
		return 0, err
	}
	for _, x := range f.extents(&a, off, int64(len(p))) {
		b := p[x.from-off : x.to-off]
		if x.from-off != int64(n) {
			break // no extent covers the gap
		}
		k := len(b)
		if f.present.has(x.PieceID) {
			k, err = here(b, x.from)
		} else {
			err = f.viewOverflow(ctx, &a, &x, func(all []byte) { copy(b, all[x.from-x.at:]) })
		}
		if err != nil {
			return n, err
		}
		if n += k; k < len(b) {
			break
		}
	}
	return n, nil
}

func (f *Fill) viewOverflow(ctx context.Context, a *metadata.Attr, x *extent, see func(b []byte)) error {
	return f.cache.View(ctx, x.PieceID, x.size, f.spawn, func(b []byte) error { return f.readThrough(x.PieceID, a, b) }, see)
}

// Missing counts the files that this node owns, could not fetch in the last pass, and still lacks, and returns the
// reason for one of them. A pass that was cut short has no reason, and does not count.
func (f *Fill) Missing() (n int64, why error) {
	f.mu.Lock()
	all, why := f.unfetched, f.lack
	f.mu.Unlock()
	if why == nil {
		return 0, nil
	}
	files := make(map[metadata.Ino]struct{})
	for _, p := range all {
		if !f.present.has(p) && !f.overflow.has(p) {
			files[p.Ino] = struct{}{}
		}
	}
	if len(files) == 0 {
		return 0, nil
	}
	return int64(len(files)), why
}

// reportMissing logs which pieces of list could not be fetched.
func (f *Fill) reportMissing(list []PieceID) {
	lacks := slices.DeleteFunc(list, func(p PieceID) bool { return f.present.has(p) || f.overflow.has(p) })
	f.mu.Lock()
	f.unfetched = slices.Clone(lacks)
	f.mu.Unlock()
	if n, why := f.Missing(); n > 0 && f.ctx.Err() == nil {
		f.cfg.Log.WithError(why).WithField("files", n).Error("files not fetched from the source: reads fail with EIO until the source has the staged versions again")
	}
	if n := f.Overflow(); n.Files > 0 {
		f.cfg.Log.WithField("files", n.Files).WithField("bytes", n.Bytes).Warn(
			"files do not fit on this node: each read goes to the source; remove files of scratch to make room")
	}
}

// outcome maps the result of fetching a piece to nil, ErrOverflow or EIO. It is EIO whatever the source's error was,
// because the reader did nothing wrong.
func (f *Fill) outcome(p PieceID, err error) error {
	var store *storeError
	switch {
	case err == nil:
		return nil
	case stagein.IsFull(err) && f.moveToOverflow(p):
		return ErrOverflow
	case errors.As(err, &store) && !stagein.IsFull(err):
		f.cfg.Log.WithError(err).WithField("inode", p.Ino).Warn("file not stored on this node's drive: reads of it fail with EIO")
		return &storeError{fmt.Errorf("%v: %w", err, syscall.EIO)}
	default:
		if _, a, e := f.cfg.Files.Origin(p.Ino); e == nil && f.ctx.Err() == nil {
			f.bad.report(&a, err)
		}
	}
	return fmt.Errorf("%v: %w", err, syscall.EIO)
}

// transient reports whether an error of the source may be transient.
func transient(err error) bool {
	passing := []error{syscall.EIO, syscall.ETIMEDOUT, syscall.EAGAIN, syscall.EINTR, syscall.ENETDOWN, syscall.ENOMEM}
	return slices.ContainsFunc(passing, func(no error) bool { return errors.Is(err, no) })
}

// storeError reports that data was read from the source but could not be stored.
type storeError struct{ err error }

func (e *storeError) Error() string { return e.err.Error() }
func (e *storeError) Unwrap() error { return e.err }

// put stores bytes of a piece that were read from the source.
func (f *Fill) put(ctx context.Context, ino metadata.Ino, b []byte, off int64) error {
	if err := f.cfg.Put(ctx, ino, b, off); err != nil {
		return &storeError{err}
	}
	return nil
}
