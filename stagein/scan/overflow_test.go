package scan

import (
	"fmt"
	"testing"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/stageintest"
)

// roomFor returns the config of four nodes with the given room each, and the room they need for items.
func roomFor(items []source.Item, room func() int64) (*Config, map[metadata.NodeID]int64) {
	cfg := &Config{Map: stageintest.ClusterMap(4), Free: func(metadata.NodeID) (int64, bool) { return room(), true }}
	cfg.setDefaults()
	need := map[metadata.NodeID]int64{}
	_ = cfg.weigh(itemSlice(items)) // reading items from memory cannot fail
	owner := cfg.owners()
	for i := range items {
		cfg.need(need, &items[i], owner, cfg.Map.Up())
	}
	return cfg, need
}

// TestOverflow: the files that stay in the source are chosen by hash alone; the nodes are filled evenly, and no node
// beyond its room.
func TestOverflow(t *testing.T) {
	r := stageintest.Rand(t)
	var items []source.Item
	total := int64(0)
	for i := range 20_000 {
		it := source.Item{Path: string(rune('a'+i%20)) + "/" + string(rune('a'+i/20%26)) + string(rune(0x100+i)), Mode: source.TypeRegular, Size: 1 + r.Int64N(200_000)}
		items = append(items, it)
		total += it.Size
	}
	room := total / 4 * 56 / 100
	cfg, need := roomFor(items, func() int64 { return room })
	stays, err := cfg.chooseOverflow(itemSlice(items), need)
	stageintest.NoError(t, err)
	has, ownerOf := map[metadata.NodeID]int64{}, cfg.owners()
	class, classStays := map[byte]float64{}, map[byte]float64{}
	for i := range items {
		class[items[i].Path[0]]++
		owner := ownerOf(&items[i])
		if stays[i] {
			classStays[items[i].Path[0]]++
			continue
		}
		has[owner] += (items[i].Size + stagein.PageSize - 1) / stagein.PageSize * stagein.PageSize
	}
	for _, id := range cfg.Map.Up() {
		if has[id] > room || has[id] < room*98/100 {
			t.Errorf("node %d has %d of %d bytes", id, has[id], room)
		}
	}
	for c, n := range class {
		if f := classStays[c] / n; f < 0.36 || f > 0.52 {
			t.Errorf("of class %c, %.2f stay in the source, want about 0.45", c, f)
		}
	}
	cfg.Request.Overflow = stagein.OverflowFail
	if got, err := cfg.chooseOverflow(itemSlice(items), need); got != nil || err != nil {
		t.Errorf("with overflow=fail, %d stay, %v", len(got), err)
	}
	cfg.Request.Overflow, room = stagein.OverflowSource, total
	if got, err := cfg.chooseOverflow(itemSlice(items), need); got != nil || err != nil {
		t.Errorf("with room for all, %d stay, %v", len(got), err)
	}
}

// TestOverflowOfLarge: a file that is too large for the nodes stays in the source, and as many of the others as fit are
// stored.
func TestOverflowOfLarge(t *testing.T) {
	const room, small, n = 20 << 20, 60 << 10, 2000
	items := []source.Item{{Path: "striped", Mode: source.TypeRegular, Size: 80 << 20}, {Path: "whole", Mode: source.TypeRegular, Size: 30 << 20}}
	for i := range n {
		items = append(items, source.Item{Path: fmt.Sprint("small", i), Mode: source.TypeRegular, Size: small})
	}
	cfg, need := roomFor(items, func() int64 { return room })
	stays, err := cfg.chooseOverflow(itemSlice(items), need)
	stageintest.NoError(t, err)
	if !stays[0] || !stays[1] {
		t.Errorf("striped stays: %v, whole: %v", stays[0], stays[1])
	}
	has, ownerOf := map[metadata.NodeID]int64{}, cfg.owners()
	for i := range items {
		if cfg.local(&items[i]) > 0 {
			if owner := ownerOf(&items[i]); !stays[i] {
				has[owner] += small
			}
		}
	}
	for _, id := range cfg.Map.Up() {
		if has[id] > room || has[id] < room*95/100 {
			t.Errorf("node %d has %d of %d bytes", id, has[id], room)
		}
	}
}

// TestOverflowOfArchive: in an archive, whole runs overflow, a proportional share of each part.
func TestOverflowOfArchive(t *testing.T) {
	r := stageintest.Rand(t)
	var items []source.Item
	end := int64(0)
	for i := range 5000 {
		it := source.Item{Path: fmt.Sprintf("%05d", i), Mode: source.TypeRegular, Size: 1 + r.Int64N(200_000), Off: end + 512}
		end = it.Off + it.Size
		items = append(items, it)
	}
	room := end / 4 * 56 / 100
	cfg, need := roomFor(items, func() int64 { return room })
	stays, err := cfg.chooseOverflow(itemSlice(items), need)
	stageintest.NoError(t, err)
	runs, parts := 0, make([]float64, 4)
	for i := range items {
		if stays[i] {
			parts[i*len(parts)/len(items)] += float64(len(parts)) / float64(len(items))
			if i == 0 || !stays[i-1] {
				runs++
			}
		}
	}
	for i, share := range parts {
		if share < 0.25 || share > 0.65 {
			t.Errorf("%.2f of quarter %d overflow, want about 0.45", share, i)
		}
	}
	if n := len(stays); n < 1500 || runs*5 > n {
		t.Errorf("%d files overflow in %d runs", n, runs)
	}
}
