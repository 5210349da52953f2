package stagein

import (
	"context"
	"fmt"
	"io"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Scanned is a source of which all is known but the files' bytes.
type Scanned struct {
	Origins Origins
	Size    int64      // bytes of the source
	Read    int64      // of them, for the scan
	Indexes NewIndexes // of what was found, for the next job
}

// worthHops is the least mean size of a tar's members, in bytes, for which it is
// scanned before it is read: a read of headers from header to header costs a round trip to
// the source, and so does each member's own read, of which several hundred go at
// a time over the nodes. Smaller members are cheaper to read in passing.
const worthHops = 64 << 10

// worthScan is the size of all archives together, in bytes, below which they are just read.
const worthScan = 64 << 20

// sampled is how many members of a tar tell their mean size.
const sampled = 64

// Scan finds what is in a source without reading its files, if that is possible
// and worth it, and writes the records of the dataset to w, as manifest.Writer
// encodes them. It is nil, nil if the source has to be read to be known: a
// compressed tar, or several archives with one among them; zip archives with
// members that are striped; archives that are small together, and tars that
// have small members, if nobody asked for an order of filling and there is room for
// all of them; and anything of which what cannot be read is to be left out.
//
// It refuses, before a byte is copied, what the nodes have no room for.
func Scan(ctx context.Context, cfg *PlanConfig, w io.Writer) (*Scanned, error) {
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

func (cfg *PlanConfig) scan(ctx context.Context, w io.Writer) (*Scanned, error) {
	paths, err := cfg.paths()
	if err != nil || cfg.Request.OnError != OnErrorFail {
		return nil, err // what cannot be read is found by reading
	}
	p := &Plan{Dataset: cfg.Dataset, Source: source.Name(cfg.Request.Source), UID: cfg.UID, GID: cfg.GID, Stripe: cfg.Stripe}
	c, err := cfg.contents(ctx, p, paths)
	if err != nil || c == nil {
		return nil, err
	}
	defer c.close()
	s := &Scanned{Size: c.size, Read: c.read, Indexes: c.fresh, Origins: Origins{Order: cfg.order(), Sources: c.sources}}
	if s.Origins.Spills, err = cfg.record(p, c.items, w); err != nil {
		s.Indexes.Close()
		return nil, err
	}
	return s, nil
}

// order is the order of the fill.
func (cfg *PlanConfig) order() Order {
	if cfg.Request.Fill.Kind == "" {
		return Order{Kind: OrderShuffled, Seed: cfg.Request.Seed}
	}
	return cfg.Request.Fill
}

// contents is what is in a source, as far as that is known without reading its files.
type contents struct {
	items   items
	sources []archive.Origin
	size    int64 // bytes
	read    int64 // of them, to know all this
	fresh   NewIndexes
}

// close gives the lists back that no index is made of.
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

// contents finds what is in the source; nil if it has to be read to be known.
func (cfg *PlanConfig) contents(ctx context.Context, p *Plan, paths []string) (*contents, error) {
	if cfg.Request.Unpack == UnpackNo {
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
		if found.Kind == source.Dir && cfg.Request.Unpack == UnpackNested {
			return nil, fmt.Errorf("%s: is a directory: give the tars in it by a pattern, or leave unpack=nested out: %w", found.Path, syscall.EINVAL)
		}
		if found.Kind == source.Dir {
			return cfg.inTree(ctx, p, found.Path, nil)
		}
	}
	return cfg.inArchives(ctx, paths)
}

func (cfg *PlanConfig) inTree(ctx context.Context, p *Plan, root string, below map[string]bool) (*contents, error) {
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

// overflows reports whether an archive of that size does not fit, so that some of
// it has to stay where it is.
func (cfg *PlanConfig) overflows(size int64) bool {
	return cfg.Request.Spill != SpillFail && cfg.exceeds(size)
}

// exceeds reports whether so many bytes do not fit.
func (cfg *PlanConfig) exceeds(size int64) bool {
	return cfg.Free != nil && !cfg.fits(evenly(size, cfg.Map.Up()))
}

// inPages is about what tars of size bytes take on the nodes' disks, whose members are
// of mean bytes with their headers: a small file takes a page.
func inPages(size, mean int64) int64 {
	data := mean - source.BlockSize
	if data <= 0 || data >= worthHops {
		return size
	}
	return size / mean * pages(data)
}

// mostPages is the most of that, whatever the members: a header, a byte and its padding
// become a page.
func mostPages(size int64) int64 { return size / (2 * source.BlockSize) * pageSize }

// pages is what a file of n bytes takes on a disk.
func pages(n int64) int64 { return (n + pageSize - 1) / pageSize * pageSize }

// record writes the records of items, and says whether some stay in the source
// because there is no room for them.
func (cfg *PlanConfig) record(p *Plan, items items, w io.Writer) (spills bool, err error) {
	nodes := cfg.Map.Up()
	if len(nodes) == 0 {
		return false, fmt.Errorf("%s: no node is up: %w", p.Source, syscall.EHOSTDOWN)
	}
	p.Size = 0 // from here on, of what is stored
	need := make(map[metadata.NodeID]int64, len(nodes))
	if err := items.each(func(it *source.Item) error {
		p.Size += it.Size
		cfg.need(need, it, nodes)
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
	s := &Share{cfg: ShareConfig{Plan: p, Map: cfg.Map}}
	s.rec = newRecorder(s, w)
	i := 0
	if err := items.each(func(it *source.Item) error {
		i++
		return s.found(it, stays[i-1])
	}); err != nil {
		return false, err
	}
	return len(stays) > 0, s.rec.close()
}

// need adds what the nodes will hold of an item.
func (cfg *PlanConfig) need(need map[metadata.NodeID]int64, it *source.Item, nodes []metadata.NodeID) {
	if it.Size <= cfg.Stripe {
		need[cfg.Map.FileOwner(it.Path)] += pages(it.Size)
		return
	}
	for _, id := range nodes {
		need[id] += it.Size / int64(len(nodes))
	}
}

// found writes the record of an item of which only the bytes are not known, or
// which stays where it is.
func (s *Share) found(it *source.Item, stays bool) error {
	if it.Hardlink != "" {
		return s.rec.add(s.recordOf(it, nil))
	}
	to, err := s.place(it)
	if err != nil {
		return err
	}
	rec := s.recordOf(it, to)
	if stays {
		rec.Attr.Layout = metadata.Layout{Kind: metadata.Spilled}
	}
	return s.rec.add(rec)
}
