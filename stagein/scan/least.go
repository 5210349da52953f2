package scan

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/unpack"
)

const (
	// likely is how many times its size a compressed tar is assumed to unpack to at the most. If that fits, no more is
	// checked.
	likely = 64
	// headers is the fraction of a tar that is not counted as data: headers, and members without data. The last page of a
	// file is more than its padding and its header.
	headers = 16
)

// whoSays returns, for a message, what states how large archives are at the least; of several, the one that states most.
func whoSays(all []archiveScan) string {
	most := slices.MaxFunc(all, func(a, b archiveScan) int { return cmp.Compare(a.least, b.least) })
	if len(all) == 1 {
		return "at the least, by " + most.by
	}
	return fmt.Sprintf("at the least; %s has %s of it, by %s", most.Path, metadata.FormatBytes(most.least), most.by)
}

// findLeast finds what an archive unpacks to at the least.
func (a *archiveScan) findLeast(fsys source.FS, read *atomic.Int64) error {
	if !a.found.Kind.Packed() {
		a.least, a.by = a.Size, "its size"
		return nil
	}
	f, err := fsys.Open(a.found.Path)
	if err != nil {
		return fmt.Errorf("%s: %w", a.Path, err)
	}
	defer f.Close() // read only
	if a.least, a.by, err = unpack.MinUnpacked(archive.CountReads(f, read), a.found.Kind, a.Size, a.found.Head); err != nil {
		return fmt.Errorf("%s: %w", a.Path, err)
	}
	return nil
}

// roomFor refuses archives that cannot fit whatever is in them. It takes a few small reads at the ends of those that are
// compressed. Where only some members are selected, or damaged ones are left out, their size says nothing.
func (cfg *Config) roomFor(ctx context.Context, p *stagein.Plan, archives []stagein.Archive) error {
	if cfg.Request.Selects() || cfg.Request.OnError != stagein.OnErrorFail || !cfg.exceeds(p.Size*likely) {
		return nil
	}
	all, err := cfg.detectAll(ctx, archives)
	if err != nil {
		return err
	}
	var read atomic.Int64
	err = each(ctx, all, func(_ context.Context, a *archiveScan) error { return a.findLeast(cfg.FS, &read) })
	if err != nil {
		return err
	}
	for i := range all {
		if cfg.found == nil {
			p.Read += all[i].read // its reader reads the head again
		}
		p.Least += all[i].least
	}
	p.LeastBy = whoSays(all)
	p.Read += read.Load()
	return cfg.room(p, evenly(p.Least-p.Least/headers, cfg.Map.Up()))
}
