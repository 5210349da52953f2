package scan

import (
	"context"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Scanned describes a source of which everything is known except the bytes of its files.
type Scanned struct {
	Origins stagein.Origins
	Size    int64      // bytes of the source
	Read    int64      // bytes of it that the scan read
	Indexes NewIndexes // to be saved for the next job
}

// worthHops is the lowest mean size of a tar's members, in bytes, at which the tar is scanned. Each header costs a
// round trip to the source, as does the read of each member, of which the nodes have several hundred in flight. Smaller
// members are cheaper in a single pass.
const worthHops = 64 << 10

// worthScan is the total size of archives, in bytes, below which they are staged in a single pass.
const worthScan = 64 << 20

// sampled is how many members of a tar are sampled for their mean size.
const sampled = 64

// Run lists the content of a source without reading its files, if that is possible and worthwhile, and writes its
// records to w, encoded by manifest.Writer. It returns nil, nil if the source must be staged in a single pass:
//
//   - compressed tars, and patterns with one among them
//   - tars with sparse members, and zip archives with members that would be striped
//   - small archives, and tars of small members, unless an order was asked for or not all of them fit
//   - anything with on-error=skip
//
// If overflow=fail, it refuses a source that does not fit before a byte is copied.
func Run(ctx context.Context, cfg *Config, w io.Writer) (*Scanned, error) {
	if err := cfg.Request.Validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	s, err := cfg.scan(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("stage-in of %w", err)
	}
	return s, nil
}

// contents is the content of a source as found by a scan.
type contents struct {
	items   items
	sources []archive.Origin
	size    int64 // bytes
	read    int64 // bytes of it that the scan read
	fresh   NewIndexes
}

// close drops the lists from which no index is made.
func (c *contents) close() {
	kept := make(map[*itemList]bool)
	for _, n := range c.fresh {
		kept[n.items] = true
	}
	all, _ := c.items.(joined)
	for _, p := range all {
		if l, ok := p.items.(*itemList); ok && !kept[l] {
			l.close()
		}
	}
}

// inPages estimates the size on the nodes' disks of tars of size bytes whose members have mean bytes including headers:
// a small file takes a page.
func inPages(size, mean int64) int64 {
	data := mean - source.BlockSize
	if data <= 0 || data >= worthHops {
		return size
	}
	return size / mean * stagein.Pages(data)
}

// mostPages is the upper bound of inPages: a header with a byte of data and its padding becomes a page.
func mostPages(size int64) int64 { return size / (2 * source.BlockSize) * stagein.PageSize }

// found writes the record of an item that is fetched later or, if stays is true, overflows.
func found(rec *stagein.Recorder, place *stagein.Placer, it *source.Item, stays bool) error {
	if it.Hardlink != "" {
		return rec.Add(place.Record(it, nil))
	}
	ino, err := rec.Ino()
	if err != nil {
		return err
	}
	to, err := place.Place(it, ino)
	if err != nil {
		return err
	}
	r := place.Record(it, to)
	if stays {
		r.Attr.Layout = metadata.Layout{Kind: metadata.Overflow}
	}
	return rec.Add(r)
}

func (cfg *Config) scan(ctx context.Context, w io.Writer) (*Scanned, error) {
	paths, err := cfg.paths()
	if err != nil || cfg.Request.OnError != stagein.OnErrorFail {
		return nil, err // unreadable files are found only by reading
	}
	p := &stagein.Plan{Dataset: cfg.Dataset, Source: source.Name(cfg.Request.Source), UID: cfg.UID, GID: cfg.GID, Stripe: cfg.Stripe}
	c, err := cfg.contents(ctx, p, paths)
	if err != nil || c == nil {
		return nil, err
	}
	defer c.close()
	s := &Scanned{Size: c.size, Read: c.read, Indexes: c.fresh, Origins: stagein.Origins{Order: cfg.order(), Sources: c.sources}}
	if s.Origins.HasOverflow, err = cfg.record(p, c.items, w); err != nil {
		s.Indexes.Close()
		return nil, err
	}
	return s, nil
}

// order returns the order of the fill.
func (cfg *Config) order() stagein.Order {
	if cfg.Request.Fill.Kind == "" {
		return stagein.Order{Kind: stagein.OrderShuffled, Seed: cfg.Request.Seed}
	}
	return cfg.Request.Fill
}

// contents lists the content of the source, or returns nil if the source must be staged in a single pass.
func (cfg *Config) contents(ctx context.Context, p *stagein.Plan, paths []string) (*contents, error) {
	if cfg.Request.Unpack == stagein.UnpackNo {
		root, below, err := cfg.kept(paths)
		if err != nil {
			return nil, err
		}
		return cfg.inTree(ctx, p, root, below)
	}
	if len(paths) == 1 {
		found, err := cfg.detect(paths[0])
		if err != nil {
			return nil, err
		}
		if found.Kind == source.Dir && cfg.Request.Unpack == stagein.UnpackNested {
			return nil, fmt.Errorf("%s: is a directory: give the tars in it by a pattern, or leave unpack=nested out: %w", found.Path, syscall.EINVAL)
		}
		if found.Kind == source.Dir {
			return cfg.inTree(ctx, p, found.Path, nil)
		}
	}
	return cfg.inArchives(ctx, paths)
}

func (cfg *Config) inTree(ctx context.Context, p *stagein.Plan, root string, below map[string]bool) (*contents, error) {
	items, err := cfg.tree(ctx, p, root, below)
	if err != nil {
		return nil, err
	}
	c := &contents{items: itemSlice(items), sources: []archive.Origin{{Path: p.Source, Kind: source.Dir}}}
	for i := range items {
		c.size += items[i].Size
	}
	return c, nil
}

// overflows reports whether an archive of the given size does not fit and part of it may stay in the source.
func (cfg *Config) overflows(size int64) bool {
	return cfg.Request.Overflow != stagein.OverflowFail && cfg.exceeds(size)
}

// exceeds reports whether size bytes do not fit.
func (cfg *Config) exceeds(size int64) bool {
	return cfg.Free != nil && !cfg.fits(evenly(size, cfg.Map.Up()))
}

// record writes the records of items. overflows reports whether some of them overflow.
func (cfg *Config) record(p *stagein.Plan, items items, w io.Writer) (overflows bool, err error) {
	nodes := cfg.Map.Up()
	if len(nodes) == 0 {
		return false, fmt.Errorf("%s: no node is up: %w", p.Source, syscall.EHOSTDOWN)
	}
	p.Size = 0 // from here on, the bytes that are stored
	if err := cfg.weigh(items); err != nil {
		return false, err
	}
	need := make(map[metadata.NodeID]int64, len(nodes))
	owner := cfg.owners()
	if err := items.each(func(it *source.Item) error {
		p.Size += it.Size
		cfg.need(need, it, owner, nodes)
		return nil
	}); err != nil {
		return false, err
	}
	stays, err := cfg.chooseOverflow(items, need)
	if err != nil {
		return false, err
	}
	if stays == nil {
		if err := cfg.room(p, need); err != nil {
			return false, err
		}
	}
	rec := stagein.NewRecorder(p, stagein.Part{}, w)
	place := stagein.Placer{Plan: p, Map: cfg.Map, Owner: cfg.owners()}
	i := 0
	if err := items.each(func(it *source.Item) error {
		i++
		return found(rec, &place, it, stays[i-1])
	}); err != nil {
		return false, err
	}
	return len(stays) > 0, rec.Close()
}

// weigh determines how a scan's files are balanced over the nodes. A file for which no node has room overflows and is
// no load.
func (cfg *Config) weigh(items items) error {
	room := int64(math.MaxInt64)
	if cfg.Free != nil {
		room = 0
		for _, id := range cfg.Map.Up() {
			if free, known := cfg.Free(id); known {
				room = max(room, usable(free))
			} else {
				room = math.MaxInt64
			}
		}
	}
	cfg.load, cfg.loads = func(size int64) int64 {
		if size > room {
			return 0
		}
		return size
	}, 0
	return items.each(func(it *source.Item) error {
		cfg.loads += cfg.load(cfg.local(it))
		return nil
	})
}

// owners returns a function that returns the owner of a file. It must be called for each file that is not striped, in
// order.
func (cfg *Config) owners() func(it *source.Item) metadata.NodeID {
	b := cfg.Map.Balance(cfg.loads)
	return func(it *source.Item) metadata.NodeID { return b.Owner(it.Path, cfg.load(it.Size)) }
}

// need adds the bytes that each node will hold of an item.
func (cfg *Config) need(need map[metadata.NodeID]int64, it *source.Item, owner func(*source.Item) metadata.NodeID, nodes []metadata.NodeID) {
	if n := cfg.local(it); n > 0 {
		need[owner(it)] += stagein.Pages(n)
	}
	if it.Size <= cfg.Stripe {
		return
	}
	for _, id := range nodes {
		need[id] += it.Size / int64(len(nodes))
	}
}
