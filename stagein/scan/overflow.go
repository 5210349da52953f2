package scan

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

const (
	leastSpare = 256 << 10 // bytes of a node reserved for its filesystem
	largePart  = 16        // a file is large if it takes more than this fraction (1/16) of a node
)

// candidate is the part of a file that may overflow which is kept in memory.
type candidate struct {
	h     uint64
	i     int   // index of its item
	takes int64 // approximate bytes on disks
	wide  bool  // the file is striped
	owner metadata.NodeID
}

// overflowHash returns the hash that orders files for overflow. Files in one run of an archive have the same hash, so
// that one request to the source reads several.
func overflowHash(seed uint64, it *source.Item) uint64 {
	seed ^= 0x7370696c6c
	if it.Off == 0 && it.Zip == (source.ZipMember{}) { // a file in a directory
		return xxh3.HashStringSeed(it.Path, seed)
	}
	b := binary.LittleEndian.AppendUint32(nil, it.Source)
	return xxh3.HashSeed(binary.LittleEndian.AppendUint64(b, uint64((it.Off-it.Head)/stagein.OverflowRun)), seed)
}

// usable returns how many of free bytes files may use; the filesystem needs the rest.
func usable(free int64) int64 { return free - max(leastSpare, free/256) }

// chooseOverflow returns the indexes of the items that overflow, if the nodes lack room for all. It stores files in the
// order of overflowHash, and a node takes none after the first that does not fit: so stored and overflow files are
// mixed evenly in any reading order. A file that takes a large part of a node overflows alone.
func (cfg *Config) chooseOverflow(items items, need map[metadata.NodeID]int64) (map[int]bool, error) {
	nodes := cfg.Map.Up()
	if cfg.Request.Overflow == stagein.OverflowFail || cfg.Free == nil || cfg.fits(need) {
		return nil, nil
	}
	files, err := cfg.byHash(items)
	if err != nil {
		return nil, err
	}
	left := make(map[metadata.NodeID]int64, len(nodes))
	large := make(map[metadata.NodeID]int64, len(nodes))
	for _, id := range nodes {
		if free, known := cfg.Free(id); known {
			left[id] = usable(free)
		} else {
			left[id] = need[id]
		}
		large[id] = left[id] / largePart
	}
	stays := make(map[int]bool)
	full := make(map[metadata.NodeID]bool)
	for _, f := range files {
		takes := cfg.takes(&f, nodes)
		fits := true
		for id, n := range takes {
			fits = fits && !full[id] && n <= left[id]
		}
		for id, n := range takes {
			if fits {
				left[id] -= n
			} else if n > left[id] && n <= large[id] {
				full[id] = true
			}
		}
		if !fits {
			stays[f.i] = true
		}
	}
	return stays, nil
}

// byHash returns the files among items, ordered by hash.
func (cfg *Config) byHash(items items) ([]candidate, error) {
	var all []candidate
	i, owner := 0, cfg.owners()
	err := items.each(func(it *source.Item) error {
		if it.Hardlink == "" && it.Is(source.TypeRegular) && it.Size > 0 {
			f := candidate{h: overflowHash(cfg.Map.Seed, it), i: i, takes: it.Size, wide: it.Size > cfg.Stripe}
			if !f.wide {
				f.owner = owner(it)
			}
			all = append(all, f)
		}
		i++
		return nil
	})
	slices.SortFunc(all, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.h, b.h), cmp.Compare(a.i, b.i)) })
	return all, err
}

// takes returns the bytes that each node needs for a file, in whole pages and chunks.
func (cfg *Config) takes(f *candidate, nodes []metadata.NodeID) map[metadata.NodeID]int64 {
	if !f.wide {
		return map[metadata.NodeID]int64{f.owner: stagein.Pages(f.takes)}
	}
	each := make(map[metadata.NodeID]int64, len(nodes))
	row := int64(len(nodes)) * stagein.StripeChunk
	for _, id := range nodes {
		each[id] = (f.takes + row - 1) / row * stagein.StripeChunk
	}
	return each
}

// fits reports whether the nodes have room, as far as that is known.
func (cfg *Config) fits(need map[metadata.NodeID]int64) bool {
	for id, n := range need {
		if free, known := cfg.Free(id); known && n > free-leastSpare {
			return false
		}
	}
	return true
}
