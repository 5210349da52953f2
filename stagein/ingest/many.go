package ingest

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// manyAtOnce is how many archives a node reads concurrently: unpacking one keeps one core busy. They share the buffers.
const manyAtOnce = 3

// roundCheckpoints is the size of a round of archives, in checkpoint intervals of one archive: 256 MiB of source.
const roundCheckpoints = 64

// runMany stages a part's archives in rounds with a checkpoint after each, or in one round without checkpoints.
func (s *Share) runMany(ctx context.Context) error {
	if s.cfg.Part.Index == 0 && s.cfg.Resume == nil {
		s.count.source.Add(s.cfg.Plan.Read) // by scan.Run, for all parts
	}
	next := 0
	if m := s.cfg.Resume; m != nil {
		next = m.Next
	}
	for next < len(s.cfg.Part.Archives) {
		end := s.round(next)
		if err := s.runArchives(ctx, next, end); err != nil {
			return err
		}
		if next = end; s.checkpoints() {
			if err := s.checkpointArchives(next); err != nil {
				return err
			}
		}
	}
	return s.listed()
}

// round returns the end of the round that begins with archive i.
func (s *Share) round(i int) int {
	all, bytes := s.cfg.Part.Archives, int64(0)
	if !s.checkpoints() {
		return len(all)
	}
	end := i
	for end < len(all) && (end-i < manyAtOnce || bytes < roundCheckpoints*s.cfg.Limits.Checkpoint) {
		bytes += all[end].Size
		end++
	}
	return end
}

// runArchives stages the archives [i, end) of the part. When it returns, all their data is stored.
func (s *Share) runArchives(ctx context.Context, i, end int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(min(manyAtOnce, s.pool.Room()/archive.MinPieces), 1))
	if s.cfg.Plan.Limit > 0 {
		g.SetLimit(1)
	}
	for ; i < end; i++ {
		a := &s.cfg.Part.Archives[i]
		g.Go(func() error {
			if ctx.Err() != nil || s.sel.Full() {
				return ctx.Err()
			}
			return s.skip(string(a.Path), s.archive(ctx, a))
		})
	}
	return g.Wait()
}

// checkpointArchives makes a checkpoint before archive next. All archives before it are stored and recorded.
func (s *Share) checkpointArchives(next int) error {
	m := Checkpoint{Next: next, Files: s.count.files.Load(), Bytes: s.count.bytes.Load(), Need: s.count.need.Load(), Source: s.count.source.Load()}
	err := s.recorded(&m)
	if err == nil {
		s.cfg.Checkpointed(m)
	}
	return err
}

// archive stages one archive of the part as a sub-share, which uses the recorder, counters and buffers of s.
func (s *Share) archive(ctx context.Context, a *stagein.Archive) error {
	found, err := walk.Detect(s.cfg.FS, string(a.Path))
	if err != nil {
		return err
	}
	if was := (source.Info{Size: a.Size, Mtime: a.Mtime}); !was.Same(found.Info) || found.Kind == source.Dir {
		return fmt.Errorf("%s: was changed since the stage-in began: %w", a.Path, syscall.ESTALE)
	}
	all := s.cfg.Plan
	p := &stagein.Plan{
		Dataset: all.Dataset, Name: all.Name, Source: a.Path, Kind: found.Kind, Size: a.Size, Mtime: a.Mtime, Head: found.Head,
		Room: all.Room, Least: all.Least, LeastBy: all.LeastBy, Free: all.Free, WayOut: all.WayOut, UID: all.UID, GID: all.GID, Stripe: all.Stripe, Under: a.Under, Options: all.Options, Number: a.Number,
	}
	p.Parts = []stagein.Part{{Node: s.cfg.Part.Node, Off: int64(len(p.Head)), End: a.Size, Bytes: a.Size}}
	if p.Kind == source.Zip {
		if err := s.zipWhole(p); err != nil {
			return err
		}
	}
	sub := &Share{cfg: s.cfg, count: s.count, pool: s.pool, rec: s.rec, ctx: ctx, sel: s.sel}
	sub.cfg.Plan, sub.cfg.Part = p, p.Parts[0]
	sub.placer = stagein.Placer{Plan: p, Part: p.Parts[0], Map: s.cfg.Map}
	if err := sub.checkpointsOf(s); err != nil {
		return fmt.Errorf("%s: %w", a.Path, err)
	}
	err = sub.run(ctx)
	switch {
	case err == nil:
		return nil
	case s.cfg.Plan.OnError == stagein.OnErrorSkip && errors.Is(err, syscall.ESTALE): // members may be of either version
		return fmt.Errorf("%s: %w: %w", a.Path, err, errPartly)
	}
	return fmt.Errorf("%s: %w", a.Path, err)
}

// checkpointsOf allows checkpoints inside the archive, and resuming from one, if it is the part's only archive.
func (s *Share) checkpointsOf(part *Share) error {
	m := s.cfg.Resume
	inside := len(part.cfg.Part.Archives) == 1 && part.checkpoints() && s.cfg.Plan.Kind != source.Zip
	switch {
	case !inside || m != nil && m.At == 0:
		s.cfg.Resume = nil
	case m != nil && !m.validIn(s.cfg.Plan, s.cfg.Part):
		return fmt.Errorf("cannot resume from %d: %w", m.At, syscall.EINVAL)
	}
	if !inside {
		s.cfg.Checkpointed = nil
	}
	return nil
}

// zipWhole plans a zip archive that one node reads: all its members that can be staged.
func (s *Share) zipWhole(p *stagein.Plan) error {
	f, err := s.cfg.FS.Open(string(p.Source))
	if err != nil {
		return err
	}
	var failed error
	x, err := zip.Read(f, string(p.Source), p.Size, p.Head, func(member string, err error) bool {
		switch {
		case s.sel.Leaves(member):
			return true
		case s.cfg.Plan.OnError != stagein.OnErrorSkip || failed != nil:
			return false
		}
		failed = s.skip(member, err)
		return failed == nil
	})
	if e := f.Close(); err == nil && e != nil {
		err = fmt.Errorf("%s: %w", p.Source, e)
	}
	if failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	p.Read = x.Read + int64(len(p.Head))
	p.Parts = stagein.ZipParts(x, 1, int64(len(p.Head)))
	p.Parts[0].Off = min(int64(len(p.Head)), p.Parts[0].End)
	return nil
}
