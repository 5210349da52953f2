package scan

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// headerScanner finds the members of a plain tar by reading only headers, each of which gives the offset of the next.
// As these reads depend on each other, the archive is cut into segments that are scanned in parallel, each from its
// first block that looks like a header. If that block is no header (the data of a tar in a tar has header blocks), the
// segment before does not end there, and the segment is scanned again from where the segment before ends.
type headerScanner struct {
	f      source.File
	name   string
	size   int64
	room   *manifest.Scratch
	exact  bool           // a read fetches exactly its bytes, not whole pages
	read   atomic.Int64   // bytes
	reads  atomic.Int64   // number of reads for headers
	sel    *source.Select // selected members; nil: all
	under  string         // directory of the members in the dataset
	nested bool           // tars in the archive are unpacked too, or this is such a tar
	left   atomic.Bool    // a member that cannot be staged was left out because it is not selected
	member int64          // mean bytes of a member, with its headers; set by mean
}

// page holds the bytes read for the last header. A filesystem reads whole pages, which contain the headers of small
// neighbours. Where it reads exact ranges (exact), nothing behind the headers of large members is read.
type page struct {
	off    int64
	b      []byte
	blocks int64 // largest number of header blocks of a member so far
	large  bool  // the previous member was larger than a page
}

// read returns how many bytes to read at off, of an archive of size bytes.
func (p *page) read(off, size int64, exact bool) int64 {
	end := off&^(stagein.PageSize-1) + stagein.PageSize
	if exact && p.large {
		end = off + min(p.blocks*source.BlockSize, stagein.PageSize)
	}
	return min(end, size) - off
}

// Bounds of the segments of a scan.
const (
	maxSegments  = 256     // requests in flight: a source answers each after some milliseconds
	leastMembers = 256     // per segment, about: the search for its first costs half a member
	searchStep   = 4 << 10 // bytes per read of the search
	maxSearch    = 1 << 20 // bytes of a search, after which the previous segment continues
)

// segment is the members of one segment.
type segment struct {
	items  *itemList
	end    int64 // offset of the next headers
	ended  bool  // the archive ended, at end
	global bool  // there was a global header, which applies to all members after it
}

// at reads a block at off.
func (h *headerScanner) at(ctx context.Context, b []byte, off int64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h.read.Add(int64(len(b)))
	return source.ReadFull(h.f, h.name, b, off)
}

// block reads the next block of g, together with the rest of its page.
func (h *headerScanner) block(ctx context.Context, p *page, g *tar.Parser) ([]byte, error) {
	off := g.Pos()
	p.blocks = max(p.blocks, (off-g.Start())/source.BlockSize+1)
	if off < p.off || off+source.BlockSize > p.off+int64(len(p.b)) {
		p.off, p.b = off, append(p.b[:0], make([]byte, p.read(off, h.size, h.exact))...)
		h.reads.Add(1)
		if err := h.at(ctx, p.b, off); err != nil {
			p.b = nil
			return nil, err
		}
	}
	return p.b[off-p.off:][:source.BlockSize], nil
}

// mean returns how many bytes of the archive one header read covers, on average over the first n members.
func (h *headerScanner) mean(ctx context.Context, n int) (int64, error) {
	s, err := h.follow(ctx, 0, h.size, n)
	if err != nil {
		return 0, err
	}
	defer s.items.close()
	if s.items.n == 0 {
		return 0, fmt.Errorf("%s: the archive has no members: %w", h.name, syscall.EINVAL)
	}
	h.member = s.end / int64(s.items.n)
	return s.end / max(h.reads.Load(), 1), nil
}

// follow reads headers from off, up to the first that begin at or after end, or to the nth member.
func (h *headerScanner) follow(ctx context.Context, off, end int64, n int) (*segment, error) {
	s := &segment{items: newItemList(h.room), end: off}
	if err := h.extend(ctx, s, end, n); err != nil {
		s.items.close()
		return nil, err
	}
	return s, nil
}

// extend continues follow from the end of s, for n more members.
func (h *headerScanner) extend(ctx context.Context, s *segment, end int64, n int) error {
	var g tar.Parser
	var p page
	for last := s.items.n + min(n, allMembers); s.end < end && s.items.n < last; {
		g.Reset(s.end)
		step, err := h.group(ctx, &p, &g)
		var refused *source.RefusedError
		if errors.As(err, &refused) && h.sel.Ignores(h.under+"/"+refused.Name) {
			h.left.Store(true)
			if refused.Size > h.size || g.Pos()+source.Padded(refused.Size) > h.size {
				return h.truncated(refused.Name, g.Start())
			}
			s.end = g.Pos() + source.Padded(refused.Size)
			continue
		}
		switch {
		case refused != nil && h.nested:
			err = source.AdviseExclude(err)
		case refused != nil:
			err = source.Advise(err)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
		s.global = s.global || g.Mtime != nil
		switch step {
		case tar.End:
			s.ended = true
			return nil
		case tar.Skip:
			s.end = g.Pos()
			continue
		}
		it := g.Item
		if it.Sparse != nil {
			return fmt.Errorf("%s: member %q at offset %d: %w", h.name, it.Path, g.Start(), errSparse)
		}
		if it.Stored() > h.size || it.Off+source.Padded(it.Stored()) > h.size {
			return h.truncated(it.Path, g.Start())
		}
		if err := s.items.add(&it, g.Start()); err != nil {
			return fmt.Errorf("%s: member %q at offset %d: %w", h.name, it.Path, g.Start(), err)
		}
		s.end = it.Off + source.Padded(it.Stored())
		p.large = it.Stored() > stagein.PageSize
	}
	return nil
}

// truncated returns the error for an archive that ends inside a member.
func (h *headerScanner) truncated(member string, off int64) error {
	return fmt.Errorf("%s: the archive ends at offset %d, inside member %q at offset %d: it is truncated: copy it again: %w",
		h.name, h.size, member, off, syscall.EBADMSG)
}

// allMembers exceeds the number of members of any archive.
const allMembers = 1 << 62

// group reads the headers of a member. It finds none at the very end of an archive that lacks one or both of its end
// blocks.
func (h *headerScanner) group(ctx context.Context, p *page, g *tar.Parser) (tar.Step, error) {
	for {
		left := h.size - g.Pos()
		switch {
		case left <= 0 && (g.Fresh() || g.Lone()):
			return tar.End, nil
		case left < source.BlockSize:
			return tar.More, fmt.Errorf("the archive ends at offset %d, inside the headers at offset %d: it is truncated: copy it again: %w",
				h.size, g.Start(), syscall.EBADMSG)
		}
		b, err := h.block(ctx, p, g)
		if err != nil {
			return tar.More, err
		}
		if step, err := g.Add(b); err != nil || step != tar.More {
			return step, err
		}
	}
}

// search looks for the first header from off, and returns an offset where a member begins if it is one; 0: none found.
func (h *headerScanner) search(ctx context.Context, off, end int64) (int64, error) {
	f := tar.Finder{Start: off, Limit: min(off+maxSearch, end)}
	for pos := off; pos < f.Limit; pos += searchStep {
		b := make([]byte, min(searchStep, h.size-pos)&^(source.BlockSize-1))
		if err := h.at(ctx, b, pos); err != nil {
			return 0, err
		}
		if f.Scan(source.Bytes(b, pos)); f.At != 0 {
			return f.At, nil
		}
	}
	return 0, nil
}

// segments returns the number of segments for an archive whose members have the given mean size; at most most.
func (h *headerScanner) segments(mean, most int64) int64 {
	return max(min(h.size/(mean*leastMembers), most), 1)
}

// scan finds all members, in n segments. global means that a header was found that applies to all of them.
func (h *headerScanner) scan(ctx context.Context, n int64) (found *itemList, global bool, err error) {
	cuts := make([]int64, n+1)
	for i := range cuts {
		cuts[i] = h.size / n * int64(i) &^ (source.BlockSize - 1)
	}
	cuts[n] = h.size
	all := make([]*segment, n)
	defer func() {
		for _, s := range all {
			if s != nil && s.items != found {
				s.items.close()
			}
		}
	}()
	g, gctx := errgroup.WithContext(ctx)
	for i := range all {
		g.Go(func() (err error) {
			all[i], err = h.segment(gctx, cuts[i], cuts[i+1])
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, false, err
	}
	if i := slices.IndexFunc(all, func(s *segment) bool { return s != nil && s.global }); i >= 0 {
		s, err := h.follow(ctx, 0, h.size, allMembers) // its global header applies to all members after it
		if err != nil {
			return nil, false, err
		}
		if err := h.rest(ctx, s); err != nil {
			s.items.close()
			return nil, false, err
		}
		return s.items, true, nil
	}
	if err := h.join(ctx, all, cuts); err != nil {
		return nil, false, err
	}
	return all[0].items, false, nil
}

// segment scans [off, end) and returns nil if it finds no header. If off is not 0, an error may only mean that the
// first header was a false one, so join reports it.
func (h *headerScanner) segment(ctx context.Context, off, end int64) (*segment, error) {
	if off > 0 {
		at, err := h.search(ctx, off, end)
		if err != nil || at == 0 || at >= end {
			return nil, err
		}
		off = at
	}
	s, err := h.follow(ctx, off, end, allMembers)
	if err != nil && off > 0 && ctx.Err() == nil {
		return nil, nil
	}
	return s, err
}

// join appends all segments to the first, and rescans a segment that does not begin where the one before ends.
func (h *headerScanner) join(ctx context.Context, all []*segment, cuts []int64) error {
	sum := all[0]
	for i, s := range all[1:] {
		end := cuts[i+2]
		if sum.ended {
			break
		}
		if sum.end >= end {
			continue
		}
		m, err := s.meeting()
		for err == nil && sum.end < end && !sum.ended {
			var met bool
			if met, err = m.at(sum.end); err != nil || met {
				break
			}
			err = h.extend(ctx, sum, end, 1)
		}
		if err != nil {
			return err
		}
		m.goOn(sum)
	}
	return h.rest(ctx, sum)
}

// meeting searches a segment for the member that begins where the previous segment ends.
type meeting struct {
	s     *segment // nil: no segment, or at its end
	r     *manifest.Reader
	n     int   // members before the current one
	start int64 // where the current one begins
	met   bool
}

func (s *segment) meeting() (*meeting, error) {
	m := &meeting{s: s, n: -1, start: -1}
	if s == nil || s.items.n == 0 {
		m.s = nil
		return m, nil
	}
	var err error
	m.r, err = s.items.parts[0].spool.Read()
	return m, err
}

// at reports whether a member begins at off. Offsets must ascend from call to call.
func (m *meeting) at(off int64) (bool, error) {
	for m.s != nil && m.start < off {
		rec, err := m.r.Next()
		if err == io.EOF {
			m.s = nil
			break
		}
		if err != nil {
			return false, err
		}
		_, m.start = listed(&rec)
		m.n++
	}
	m.met = m.s != nil && m.start == off
	return m.met, nil
}

// goOn appends to sum the members from where the segments meet.
func (m *meeting) goOn(sum *segment) {
	if !m.met {
		return
	}
	sum.items.take(m.s.items, m.n)
	sum.end, sum.ended = m.s.end, m.s.ended
}

// rest refuses an archive that is followed by another one.
func (h *headerScanner) rest(ctx context.Context, s *segment) error {
	if s.items.n == 0 {
		return fmt.Errorf("%s: the archive has no members: %w", h.name, syscall.EINVAL)
	}
	if !s.ended {
		return nil
	}
	b := make([]byte, 1<<20)
	for off := s.end; off < h.size; off += int64(len(b)) {
		b = b[:min(int64(len(b)), h.size-off)]
		if err := h.at(ctx, b, off); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		for i := 0; i+source.BlockSize <= len(b); i += source.BlockSize {
			if tar.IsHeader(b[i : i+source.BlockSize]) {
				return fmt.Errorf("%s: the archive ends at offset %d and another begins after it (were they joined by cat?); stage them one by one: %w",
					h.name, s.end, syscall.EBADMSG)
			}
		}
	}
	return nil
}
