package stagein

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// Archive is one of several that make a dataset.
type Archive struct {
	Path  source.Name   `json:"path"` // with symbolic links followed
	Size  int64         `json:"size"`
	Mtime metadata.Time `json:"mtime"`
	Under source.Name   `json:"under,omitempty"` // the directory that its members are in
	// Number is that of the archive among all.
	Number uint32 `json:"number,omitempty"`
}

// planMany gives whole archives to nodes, the largest first, so that all read about as much. With a limit, one node
// reads them in their order; with a list, too, since only a reader of all knows what is missing.
func (cfg *PlanConfig) planMany(ctx context.Context, p *Plan, paths []string, nodes []metadata.NodeID) error {
	archives, err := cfg.archives(ctx, paths)
	if err != nil {
		return err
	}
	p.Kind, p.Options, p.Room, p.Read = source.Many, cfg.Request.Options, cfg.sumFree(nodes), cfg.read
	for _, a := range archives { // its reader detects the kind
		p.Origins.Sources = append(p.Origins.Sources, archive.Origin{Path: a.Path, Kind: source.Many, Size: a.Size, Mtime: a.Mtime})
	}
	if cfg.Request.Limit > 0 || cfg.Request.List != "" {
		nodes = nodes[:1]
	}
	if cfg.Request.Limit <= 0 {
		slices.SortStableFunc(archives, func(a, b Archive) int { return cmp.Compare(b.Size, a.Size) })
	}
	for i, id := range nodes[:min(len(nodes), len(archives))] {
		p.Parts = append(p.Parts, Part{Index: uint16(i), Node: id})
	}
	for _, a := range archives {
		part := &p.Parts[0]
		for i := range p.Parts {
			if p.Parts[i].Bytes < part.Bytes {
				part = &p.Parts[i]
			}
		}
		part.Archives = append(part.Archives, a)
		part.Bytes += a.Size
		p.Size += a.Size
	}
	if err := cfg.roomFor(ctx, p, archives); err != nil {
		return err
	}
	p.Parts[0].Bytes += p.Read
	return nil
}

func (cfg *PlanConfig) archives(ctx context.Context, paths []string) ([]Archive, error) {
	all := make([]Archive, len(paths))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(cfg.Workers)
	for i, path := range paths {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			at, info, err := source.Resolve(cfg.FS, path)
			if err != nil {
				return err
			}
			if !info.Is(source.TypeRegular) {
				return fmt.Errorf("%s: is no archive: leave it out of the pattern, or write unpack=no to keep what matches as it is: %w", path, syscall.EINVAL)
			}
			all[i] = Archive{Path: source.Name(at), Size: info.Size, Mtime: info.Mtime, Number: uint32(i)}
			if cfg.Request.Unpack == UnpackApart {
				all[i].Under = source.Name(defaultName(path))
			}
			return nil
		})
	}
	return all, g.Wait()
}

// manyAtOnce is how many archives a node reads at a time, as unpacking one keeps one core busy. They share the buffers.
const manyAtOnce = 3

// roundCheckpoints is how many checkpoints of one archive a round of several is worth: 256 MiB of source.
const roundCheckpoints = 64

// runMany stages a part's archives: in rounds, after each of which there is a checkpoint, or all in one if there are no checkpoints.
func (s *Share) runMany(ctx context.Context) error {
	if s.cfg.Part.Index == 0 {
		s.count.source.Add(s.cfg.Plan.Read) // by Scan, for all
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

// round is the end of the round that begins with archive i.
func (s *Share) round(i int) int {
	all, bytes := s.cfg.Part.Archives, int64(0)
	if !s.checkpoints() {
		return len(all)
	}
	end := i
	for end < len(all) && (end-i < manyAtOnce || bytes < roundCheckpoints*s.lim.checkpoint) {
		bytes += all[end].Size
		end++
	}
	return end
}

// runArchives stages the archives [i, end) of the part. When it returns, all of them is stored.
func (s *Share) runArchives(ctx context.Context, i, end int) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(min(manyAtOnce, s.pool.Room()/archive.MinPieces), 1))
	if s.cfg.Plan.Limit > 0 {
		g.SetLimit(1)
	}
	for ; i < end; i++ {
		a := &s.cfg.Part.Archives[i]
		g.Go(func() error {
			if ctx.Err() != nil || s.sel.full() {
				return ctx.Err()
			}
			return s.skip(string(a.Path), s.archive(ctx, a))
		})
	}
	return g.Wait()
}

// checkpointArchives makes a checkpoint before archive next. All before it is stored and recorded.
func (s *Share) checkpointArchives(next int) error {
	m := Checkpoint{Next: next, Files: s.count.files.Load(), Bytes: s.count.bytes.Load(), Need: s.count.need.Load()}
	err := s.recorded(&m)
	if err == nil {
		s.cfg.Checkpointed(m)
	}
	return err
}

// archive stages one archive of the part as a share of its own, which uses the recorder, the counters and the buffers of s.
func (s *Share) archive(ctx context.Context, a *Archive) error {
	found, err := walk.Detect(s.cfg.FS, string(a.Path))
	if err != nil {
		return err
	}
	if was := (source.Info{Size: a.Size, Mtime: a.Mtime}); !was.Same(found.Info) || found.Kind == source.Dir {
		return fmt.Errorf("%s: was changed since the stage-in began: %w", a.Path, syscall.ESTALE)
	}
	all := s.cfg.Plan
	p := &Plan{
		Dataset: all.Dataset, Name: all.Name, Source: a.Path, Kind: found.Kind, Size: a.Size, Mtime: a.Mtime, Head: found.Head,
		Room: all.Room, Least: all.Least, LeastBy: all.LeastBy, Free: all.Free, WayOut: all.WayOut, UID: all.UID, GID: all.GID, Stripe: all.Stripe, Under: a.Under, Options: all.Options, Number: a.Number,
	}
	p.Parts = []Part{{Node: s.cfg.Part.Node, Off: int64(len(p.Head)), End: a.Size, Bytes: a.Size}}
	if p.Kind == source.Zip {
		if err := s.zipWhole(p); err != nil {
			return err
		}
	}
	sub := &Share{cfg: s.cfg, lim: s.lim, count: s.count, pool: s.pool, rec: s.rec, ctx: ctx, sel: s.sel}
	sub.cfg.Plan, sub.cfg.Part = p, p.Parts[0]
	if err := sub.checkpointsOf(s); err != nil {
		return fmt.Errorf("%s: %w", a.Path, err)
	}
	if err := sub.run(ctx); err != nil {
		return fmt.Errorf("%s: %w", a.Path, err)
	}
	return nil
}

// checkpointsOf allows checkpoints inside the archive, and resuming from one, if it is the only archive of the part.
func (s *Share) checkpointsOf(part *Share) error {
	m := s.cfg.Resume
	inside := len(part.cfg.Part.Archives) == 1 && part.checkpoints() && s.cfg.Plan.Kind != source.Zip
	switch {
	case !inside || m != nil && m.At == 0:
		s.cfg.Resume = nil
	case m != nil && !m.validIn(s.cfg.Plan, s.cfg.Part):
		return fmt.Errorf("cannot go on from %d: %w", m.At, syscall.EINVAL)
	}
	if !inside {
		s.cfg.Checkpointed = nil
	}
	return nil
}

// zipWhole plans a zip archive that one node reads: those of its members that can be staged.
func (s *Share) zipWhole(p *Plan) error {
	f, err := s.cfg.FS.Open(string(p.Source))
	if err != nil {
		return err
	}
	var failed error
	x, err := zip.Read(f, string(p.Source), p.Size, p.Head, func(member string, err error) bool {
		switch {
		case s.sel.leaves(member):
			return true
		case s.cfg.Plan.OnError != OnErrorSkip || failed != nil:
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
	p.Parts = zipParts(x, 1, int64(len(p.Head)))
	p.Parts[0].Off = min(int64(len(p.Head)), p.Parts[0].End)
	return nil
}
