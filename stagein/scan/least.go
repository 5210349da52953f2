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
	// likely bounds the assumed expansion of a compressed tar, as a multiple of its size. If that fits, no more is
	// checked.
	likely = 64
	// headers is the fraction of a tar not counted as data: headers, and members without data. The last page of a file
	// takes more room than its padding and its header.
	headers = 16
)

// whoSays names, for a message, the source of the stated minimum size; of several archives, that of the largest.
func whoSays(all []archiveScan) string {
	most := slices.MaxFunc(all, func(a, b archiveScan) int { return cmp.Compare(a.least, b.least) })
	if len(all) == 1 {
		return "at the least, by " + most.by
	}
	return fmt.Sprintf("at the least; %s has %s of it, by %s", most.Path, metadata.FormatBytes(most.least), most.by)
}

// findLeast determines the minimum of bytes that an archive unpacks to.
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

// roomFor refuses archives that cannot fit whatever they contain. It takes a few small reads at the ends of compressed
// archives. It checks nothing if members are selected or damaged ones left out: their total size is then unknown.
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
			p.Read += all[i].read // the archive's reader reads the head again
		}
		p.Least += all[i].least
	}
	p.LeastBy = whoSays(all)
	p.Read += read.Load()
	return cfg.room(p, evenly(p.Least-p.Least/headers, cfg.Map.Up()))
}
