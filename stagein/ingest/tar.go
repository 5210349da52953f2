package ingest

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
)

// region is the state shared by the chains of one region.
type region struct {
	*Share
	part       stagein.Part
	size       int64 // of the archive
	file       source.File
	boundaryIn chan boundaryOrError // receives one value; its buffer has room for it
	got        *boundaryOrError     // from boundaryIn
	sent       bool                 // the boundary was passed to the next region
	packed     *packed              // nil: the tar is not compressed
}

type boundaryOrError struct {
	seam Boundary
	err  error
}

// runTar stages one region of a tar.
func (s *Share) runTar(ctx context.Context) error {
	p := s.cfg.Plan
	was := source.Info{Size: p.Size, Mtime: p.Mtime}
	f, err := s.open(string(p.Source), was)
	if err != nil {
		return err
	}
	defer f.Close() // read only
	ctx, cancel := context.WithCancel(ctx)
	s.ctx = ctx
	r := &region{Share: s, part: s.cfg.Part, size: p.Size, file: f, boundaryIn: make(chan boundaryOrError, 1)}
	var wg sync.WaitGroup
	if s.cfg.Resume == nil {
		wg.Go(func() { r.await(ctx) })
		err = r.run()
	} else {
		err = r.resume(s.cfg.Resume)
	}
	cancel()
	wg.Wait()
	return s.unchanged(f, err)
}

// await waits for the boundary of the region before.
func (r *region) await(ctx context.Context) {
	if r.part.Index == 0 {
		r.count.source.Add(int64(len(r.cfg.Plan.Head)) + r.cfg.Plan.Read) // for all parts, by scan.Run and MakePlan
		r.boundaryIn <- boundaryOrError{seam: Boundary{Carry: r.cfg.Plan.Head}}
		return
	}
	s, err := r.cfg.BoundaryIn(ctx)
	if err == nil {
		err = s.check(r.part, r.size)
	} else {
		err = fmt.Errorf("boundary of region %d: %w", r.part.Index, err)
	}
	r.boundaryIn <- boundaryOrError{s, err}
}

// boundary returns the boundary of the region before, or nil if it has not arrived and wait is false.
func (r *region) boundary(wait bool) (*Boundary, error) {
	if r.got == nil && (wait || len(r.boundaryIn) > 0) {
		s := <-r.boundaryIn // await returns when ctx ends
		r.got = &s
	}
	if r.got == nil {
		return nil, r.ctx.Err()
	}
	return &r.got.seam, r.got.err
}

// read starts reading the region from off.
func (r *region) read(off int64) *source.Region {
	return source.ReadRegion(r.ctx, r.file, string(r.cfg.Plan.Source), off, r.part.End, r.pool, archive.ReadAhead)
}

func (r *region) run() error {
	from := r.read(r.part.Off)
	defer from.Close()
	var held []*source.Piece
	var g *speculation
	var err error
	if r.part.Index > 0 {
		if g, held, err = r.search(from); err != nil {
			archive.ReleaseAll(held)
			return err
		}
	}
	if g != nil {
		return g.run(held)
	}
	seam, err := r.boundary(true)
	if err != nil {
		archive.ReleaseAll(held)
		return err
	}
	c := r.chain(r.ctx, r.part.Off)
	c.t.Queue, c.t.More = held, from.Next
	return c.stage(seam)
}

// resume stages the region from a checkpoint.
func (r *region) resume(m *Checkpoint) error {
	from := r.read(m.At)
	defer from.Close()
	c := r.chain(r.ctx, m.At)
	c.t.More = from.Next
	return c.resume(m)
}

func (r *region) last() bool { return int(r.part.Index) == len(r.cfg.Plan.Parts)-1 }

// out passes the boundary to the next region, if there is one.
func (r *region) out(s *Boundary) error {
	if r.last() || r.sent {
		return nil
	}
	r.sent = true
	if err := r.cfg.BoundaryOut(r.ctx, *s); err != nil {
		return fmt.Errorf("boundary to region %d: %w", r.part.Index+1, err)
	}
	return nil
}

func (r *region) record(rec manifest.Record) error {
	if rec.Hardlink == "" && rec.Attr.Mode&source.TypeMask == source.TypeRegular {
		r.count.files.Add(1)
	}
	return r.rec.Add(rec)
}

// truncated returns an error that names the member in which the archive ends.
func (r *region) truncated(g *tar.Parser) error {
	if r.packed != nil {
		return r.packed.truncated(g)
	}
	if it := &g.Item; it.Off > 0 {
		return fmt.Errorf("the archive ends at offset %d, inside member %q at offset %d: it is truncated: copy it again: %w",
			r.size, it.Path, g.Start(), syscall.EBADMSG)
	}
	return fmt.Errorf("the archive ends at offset %d, inside the headers at offset %d: it is truncated: copy it again: %w",
		r.size, g.Start(), syscall.EBADMSG)
}

// chain returns a chain that begins at pos.
func (r *region) chain(ctx context.Context, pos int64) *chain {
	push := r.newPusher(ctx)
	return &chain{r: r, t: archive.BlockReader{Pos: pos, Waits: push.flush}, checkpointed: pos, push: push}
}
