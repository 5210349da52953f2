package scan

import (
	"context"
	"fmt"

	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// listZips reads the central directories of zip archives. It returns false if an archive has a member that would be
// striped: its pieces cannot be unpacked one by one.
func (cfg *Config) listZips(ctx context.Context, all []archiveScan) (bool, error) {
	err := each(ctx, all, func(ctx context.Context, a *archiveScan) error {
		if a.found.Kind != source.Zip {
			return nil
		}
		h, err := a.open(cfg)
		if err != nil {
			return err
		}
		return a.end(h, a.directory(ctx, h))
	})
	for i := range all {
		members, _ := all[i].items.(itemSlice)
		for k := range members {
			if it := &members[k]; it.Zip != (source.ZipMember{}) && it.Size > cfg.Stripe {
				return false, err
			}
		}
	}
	return true, err
}

// directory lists the members of a zip archive, with the targets of its symbolic links.
func (a *archiveScan) directory(ctx context.Context, h *headerScanner) error {
	file := archive.CountReads(h.f, &h.read)
	x, err := zip.Read(file, h.name, h.size, a.found.Head, func(member string, _ error) bool { return h.sel.Ignores(member) })
	if err != nil {
		return err
	}
	pool := source.NewPool(4, source.MaxTarget+3<<16) // a link with its surroundings, twice
	for i := range x.Items {
		if it := &x.Items[i]; it.Is(source.TypeSymlink) {
			s := &archive.Content{Src: file, Name: h.name}
			err := s.Unzip(ctx, archive.Buffers{In: pool, Out: pool}, it, func(z *archive.Unzipper) error { return z.Target(it) })
			if err != nil {
				return fmt.Errorf("%s: member %q at offset %d: %w", h.name, it.Path, it.Off, err)
			}
		}
	}
	a.items = itemSlice(x.Items)
	return nil
}
