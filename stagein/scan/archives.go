package scan

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/tar"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// scansAtOnce is how many archives are scanned concurrently. The bound on segments applies to all of them together.
const scansAtOnce = 16

// archiveScan is an archive being scanned.
type archiveScan struct {
	stagein.Archive
	found     walk.Found
	items     items     // nil: not yet known
	read      int64     // bytes
	least     int64     // minimum of bytes that it unpacks to, if determined
	by        string    // what states that minimum
	index     *index    // nil: none
	indexPath string    // path of the index that items come from; "": scanned
	newIndex  *newIndex // index of the items, to be saved; nil: none
}

// each calls do for all archives, some concurrently.
func each(ctx context.Context, all []archiveScan, do func(context.Context, *archiveScan) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(scansAtOnce)
	for i := range all {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return do(ctx, &all[i])
		})
	}
	return g.Wait()
}

// open opens an archive for scanning; end closes it.
func (a *archiveScan) open(cfg *Config) (*headerScanner, error) {
	f, err := cfg.FS.Open(string(a.Path))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Path, err)
	}
	h := &headerScanner{f: f, name: string(a.Path), size: a.Size, room: cfg.Scratch, nested: cfg.Request.Unpack == stagein.UnpackNested, exact: source.Exact(f)}
	if cfg.sel != nil {
		h.sel = &cfg.sel.Select
	}
	return h, nil
}

func (a *archiveScan) end(h *headerScanner, err error) error {
	a.read += h.read.Load()
	if err == nil {
		err = archive.CheckUnchanged(h.f, h.name, a.found.Info)
	}
	if e := h.f.Close(); err == nil && e != nil {
		err = fmt.Errorf("%s: %w", a.Path, e)
	}
	return err
}

// scanHeaders finds the members, in at most most segments, unless an index has them.
func (a *archiveScan) scanHeaders(ctx context.Context, cfg *Config, mean, most int64) error {
	if a.items != nil {
		return nil
	}
	h, err := a.open(cfg)
	if err != nil {
		return err
	}
	// A global header changes members, but is not among their own headers.
	found, global, err := h.scan(ctx, h.segments(mean, most))
	if err == nil {
		a.items = found
	}
	if err == nil && !global && !h.left.Load() && a.index.keeps() {
		a.newIndex = &newIndex{index: a.index, items: found}
		a.newIndex.key, err = tar.KeyOf(archive.CountReads(h.f, &h.read), h.name, a.found.Info)
	}
	return a.end(h, err)
}

// joined is the selected members of several archives, in order.
type joined []joinedPart

type joinedPart struct {
	items
	source uint32
	under  string
}

func (j joined) each(fn func(it *source.Item) error) error {
	for _, p := range j {
		if err := p.items.each(func(it *source.Item) error {
			it.Source = p.source
			it.MoveUnder(p.under)
			return fn(it)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (j joined) count() (n int) {
	for _, p := range j {
		n += p.items.count()
	}
	return n
}

// missing returns names in the list that no archive has.
func missing(s *stagein.Selection, all []archiveScan) ([]string, error) {
	m := s.NewMissing()
	for i := range all {
		if err := all[i].items.each(func(it *source.Item) error {
			m.See(it.Path)
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return m.Left(), nil
}

// filter returns the selected items of an archive; those of the archives before must have been filtered first.
func filter(s *stagein.Selection, x items) (items, error) {
	if s == nil {
		return x, nil
	}
	all, err := inMemory(x)
	if err != nil {
		return nil, err
	}
	return itemSlice(s.Next(all)), nil
}

// errSparse reports that a tar has a sparse member, so that it must be staged in a single pass.
var errSparse = errors.New("the member is sparse")

// inArchives finds the members of archives. It returns nil if they must be staged in a single pass; cfg.read is then
// the number of bytes read to find that out.
func (cfg *Config) inArchives(ctx context.Context, paths []string) (*contents, error) {
	archives, err := cfg.archives(ctx, paths)
	if err != nil {
		return nil, err
	}
	c := &contents{}
	for _, a := range archives {
		c.size += a.Size
	}
	nested, crowded := cfg.Request.Unpack == stagein.UnpackNested, cfg.overflows(c.size)
	asked := nested || crowded || cfg.Request.Fill.Kind != "" || cfg.Request.Index.Asked()
	if !asked && c.size < worthScan && !cfg.exceeds(mostPages(c.size)) {
		return nil, nil
	}
	all, err := cfg.detectAll(ctx, archives)
	if err == nil {
		cfg.sel, err = stagein.NewSelection(cfg.FS, cfg.Request.Options)
	}
	if err != nil {
		return nil, err
	}
	for i := range all {
		if k := all[i].found.Kind; nested && k != source.Tar {
			return nil, fmt.Errorf("%s: is a %s: unpack=nested needs a plain tar: decompress it first, or leave unpack=nested out: %w", all[i].Path, k, syscall.EINVAL)
		}
	}
	most := max(maxSegments/int64(len(all)), maxSegments/scansAtOnce)
	if err := cfg.lookUp(ctx, all); err != nil {
		return nil, err
	}
	if fits, err := cfg.listZips(ctx, all); err != nil || !fits {
		for i := range all {
			cfg.read += all[i].read
		}
		return nil, err
	}
	mean, err := cfg.mean(ctx, all)
	worth := mean > 0 && (asked || mean >= worthHops || cfg.overflows(cfg.stored))
	if err == nil && worth {
		err = each(ctx, all, func(ctx context.Context, a *archiveScan) error { return a.scanHeaders(ctx, cfg, mean, most) })
	}
	if err == nil && nested {
		err = each(ctx, all, func(ctx context.Context, a *archiveScan) error { return a.unnest(ctx, cfg) })
	}
	for i := range all {
		c.read += all[i].read
	}
	cfg.read = c.read
	if errors.Is(err, errSparse) {
		return nil, cfg.refuseSparse(err, crowded)
	}
	if err != nil || !worth {
		return nil, err
	}
	return c, cfg.join(c, all)
}

// refuseSparse returns why a tar with a sparse member cannot be staged in a single pass, or nil if it can.
func (cfg *Config) refuseSparse(err error, crowded bool) error {
	switch {
	case cfg.Request.Unpack == stagein.UnpackNested:
		return fmt.Errorf("%w, and unpack=nested does not support sparse members: repack it without --sparse: %w", err, syscall.EINVAL)
	case crowded && !cfg.Request.Selects():
		return fmt.Errorf("%w, and such a tar must fit completely: %s, or repack it without --sparse: %w", err, moreRoom, syscall.ENOSPC)
	}
	return nil
}

// detectAll detects the kinds of archives.
func (cfg *Config) detectAll(ctx context.Context, archives []stagein.Archive) ([]archiveScan, error) {
	all := make([]archiveScan, len(archives))
	for i, a := range archives {
		all[i].Archive = a
	}
	err := each(ctx, all, func(_ context.Context, a *archiveScan) (err error) {
		if len(all) == 1 && cfg.found != nil {
			a.found = *cfg.found
		} else if a.found, err = walk.Detect(cfg.FS, string(a.Path)); err != nil {
			return err
		}
		if was := (source.Info{Size: a.Size, Mtime: a.Mtime}); !was.Same(a.found.Info) {
			return fmt.Errorf("%s: was changed since the stage-in began: %w", a.Path, syscall.ESTALE)
		}
		a.read = int64(len(a.found.Head))
		return nil
	})
	return all, err
}

// mean returns how many bytes of the largest tar one header read covers, or 0 if an archive is a compressed tar.
func (cfg *Config) mean(ctx context.Context, all []archiveScan) (int64, error) {
	var largest *archiveScan
	size := int64(0)
	for i := range all {
		a := &all[i]
		size += a.Size
		if a.found.Kind.Packed() {
			return 0, nil
		}
		if a.items == nil && (largest == nil || a.Size > largest.Size) {
			largest = a
		}
	}
	if largest == nil {
		return worthHops, nil // all members are known
	}
	h, err := largest.open(cfg)
	if err != nil {
		return 0, err
	}
	mean, err := h.mean(ctx, sampled)
	cfg.stored = inPages(size, h.member)
	return mean, largest.end(h, err)
}

// join joins the selected members of archives, each archive below its own directory if it has one.
func (cfg *Config) join(c *contents, all []archiveScan) error {
	sel := cfg.sel
	if sel != nil && sel.Paths != nil {
		lacking, err := missing(sel, all)
		if err == nil {
			err = stagein.Unlisted(cfg.Request.List, lacking)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", cfg.Request.Source, err)
		}
	}
	var found joined
	for i := range all {
		a := &all[i]
		c.sources = append(c.sources, archive.Origin{Path: a.Path, Kind: a.found.Kind, Size: a.Size, Mtime: a.Mtime, Index: source.Name(a.indexPath)})
		if a.newIndex != nil {
			c.fresh = append(c.fresh, *a.newIndex)
		}
		wanted, err := filter(sel, a.items)
		if err != nil {
			return err
		}
		found = append(found, joinedPart{wanted, uint32(i), string(a.Under)})
	}
	if c.items = found; found.count() == 0 {
		return fmt.Errorf("%s: no file is selected: check list=, include= and exclude=: %w", cfg.Request.Source, syscall.EINVAL)
	}
	return nil
}
