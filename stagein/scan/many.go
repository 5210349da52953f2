package scan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// planMany assigns whole archives to nodes, the largest first, so that all nodes read about equally much. With a limit
// or a list, one node reads all archives in order: only a reader of all archives knows which listed names are missing.
func (cfg *Config) planMany(ctx context.Context, p *stagein.Plan, paths []string, nodes []metadata.NodeID) error {
	archives, err := cfg.archives(ctx, paths)
	if err != nil {
		return err
	}
	p.Kind, p.Options, p.Room, p.Read = source.Many, cfg.Request.Options, cfg.sumFree(nodes), cfg.read
	for _, a := range archives { // the archive's reader detects the kind
		p.Origins.Sources = append(p.Origins.Sources, archive.Origin{Path: a.Path, Kind: source.Many, Size: a.Size, Mtime: a.Mtime})
	}
	if cfg.Request.Limit > 0 || cfg.Request.List != "" {
		nodes = nodes[:1]
	}
	if cfg.Request.Limit <= 0 {
		slices.SortStableFunc(archives, func(a, b stagein.Archive) int { return cmp.Compare(b.Size, a.Size) })
	}
	for i, id := range nodes[:min(len(nodes), len(archives))] {
		p.Parts = append(p.Parts, stagein.Part{Index: uint16(i), Node: id})
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

func (cfg *Config) archives(ctx context.Context, paths []string) ([]stagein.Archive, error) {
	all := make([]stagein.Archive, len(paths))
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
				return fmt.Errorf("%s: is not an archive: exclude it from the pattern, or stage all matches as they are with unpack=no: %w", path, syscall.EINVAL)
			}
			all[i] = stagein.Archive{Path: source.Name(at), Size: info.Size, Mtime: info.Mtime, Number: uint32(i)}
			if cfg.Request.Unpack == stagein.UnpackApart {
				all[i].Under = source.Name(stagein.DefaultName(path))
			}
			return nil
		})
	}
	return all, g.Wait()
}
