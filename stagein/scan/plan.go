package scan

import (
	"context"
	"fmt"
	"math"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Config is the input of Run and MakePlan.
type Config struct {
	FS      source.FS
	Request stagein.Request
	Dataset metadata.DatasetID
	Map     cluster.Map
	UID     uint32
	GID     uint32
	// Free returns the free bytes of a node; false: not known. nil: not known for any node.
	Free    func(metadata.NodeID) (int64, bool)
	Stripe  int64         // files larger than this are striped; 0: DefaultStripe
	Region  int64         // minimum of bytes of a tar that are worth a node; 0: 1 MiB
	Workers int           // workers that walk a directory; 0: 128
	Others  []walk.Remote // nodes that help with the walk
	Log     *logrus.Entry
	// Scratch is where a scan keeps the members of tars; nil: the system's temporary directory.
	Scratch *manifest.Scratch

	found *walk.Found // set by Run
	read  int64       // set by Run; bytes it read before leaving the source to a single pass
	// stored is the approximate size of the source on the nodes' disks, set by Run; 0: not known.
	stored int64
	load   func(size int64) int64 // set by Run: how many bytes of a file count for its owner's load
	loads  int64                  // set by Run: sum over all files
	sel    *stagein.Selection     // set by Run: selection of members of archives
}

// detect detects the kind of the source at path, once.
func (cfg *Config) detect(path string) (walk.Found, error) {
	if cfg.found == nil {
		f, err := walk.Detect(cfg.FS, path)
		if err != nil {
			return f, err
		}
		cfg.found = &f
	}
	return *cfg.found, nil
}

const (
	defaultRegion = 1 << 20
	defaultWalk   = 128     // each waits for the source
	alignment     = 1 << 20 // of large regions, so that no two readers share a stripe of the source
)

// MakePlan divides a source that Run left to a single pass among the nodes that are up. It reads one block of a tar,
// which the plan carries, the central directory of a zip archive, and no data in a directory. It refuses a source that
// cannot fit before a byte is copied: a tar by each node's expected share, a compressed tar by its stated unpacked size
// (unpack.MinUnpacked). The single pass stops a compressed tar that unpacks to more than all nodes can store.
func MakePlan(ctx context.Context, cfg *Config) (*stagein.Plan, error) {
	if err := cfg.Request.Validate(); err != nil {
		return nil, err
	}
	p, err := cfg.plan(ctx)
	if err != nil {
		return nil, fmt.Errorf("stage-in of %w", err)
	}
	p.Free, p.WayOut = cfg.allFree(), cfg.wayOut(p)
	p.Origins.Staged, p.Origins.Order, p.Origins.Since = true, cfg.order(), cfg.Map.Epoch
	if len(p.Origins.Sources) == 0 {
		p.Origins.Sources = []archive.Origin{{Path: p.Source, Kind: p.Kind, Size: p.Size, Mtime: p.Mtime}}
	}
	return p, nil
}

func (cfg *Config) plan(ctx context.Context) (*stagein.Plan, error) {
	cfg.setDefaults()
	nodes := cfg.Map.Up()
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%s: no node is up: %w", cfg.Request.Source, syscall.EHOSTDOWN)
	}
	paths, err := cfg.paths()
	if err != nil {
		return nil, err
	}
	p := &stagein.Plan{
		Dataset: cfg.Dataset, Name: cfg.Request.Name, Source: source.Name(cfg.Request.Source),
		UID: cfg.UID, GID: cfg.GID, Stripe: cfg.Stripe, Map: cfg.Map,
	}
	if len(paths) > 1 && cfg.Request.Unpack != stagein.UnpackNo {
		return p, cfg.planMany(ctx, p, paths, nodes)
	}
	if cfg.Request.Unpack == stagein.UnpackNo {
		return p, cfg.planKept(ctx, p, paths, nodes)
	}
	found, err := cfg.detect(paths[0])
	if err != nil {
		return nil, err
	}
	p.Source, p.Kind, p.Mtime, p.Head = source.Name(found.Path), found.Kind, found.Info.Mtime, found.Head
	if p.Kind == source.Dir {
		return p, cfg.planTree(ctx, p, found.Path, nil, nodes)
	}
	if cfg.alone(paths) {
		return p, cfg.planMany(ctx, p, paths, nodes)
	}
	if p.Kind == source.Tar {
		p.Size, p.Read = found.Info.Size, cfg.read-min(cfg.read, int64(len(found.Head)))
		p.Parts = regions(p.Size, cfg.Region, nodes)
		return p, cfg.room(p, evenly(max(p.Size, cfg.stored), nodes))
	}
	if p.Kind.Packed() {
		p.Size, p.Room = found.Info.Size, cfg.sumFree(nodes)
		if err := cfg.roomFor(ctx, p, []stagein.Archive{{Path: p.Source, Size: p.Size, Mtime: p.Mtime}}); err != nil {
			return nil, err
		}
		p.Parts = []stagein.Part{{Node: cfg.Map.FileOwner(found.Path), Off: int64(len(p.Head)), End: p.Size, Bytes: p.Size + p.Read}}
		return p, nil
	}
	if p.Kind == source.Zip {
		return p, cfg.planZip(p, found.Info, nodes)
	}
	return nil, fmt.Errorf("%s: a source of kind %q: %w", p.Source, p.Kind, syscall.EINVAL)
}

func (cfg *Config) setDefaults() {
	if cfg.Stripe <= 0 {
		cfg.Stripe = stagein.DefaultStripe
	}
	if cfg.Region <= 0 {
		cfg.Region = defaultRegion
	}
	if cfg.Workers <= 0 {
		cfg.Workers = defaultWalk
	}
	if cfg.Scratch == nil {
		cfg.Scratch = &manifest.Scratch{}
	}
}

// regions cuts a tar, whose first block was already read, into one region per node.
func regions(size, least int64, nodes []metadata.NodeID) []stagein.Part {
	n := min(int64(len(nodes)), max(size/max(least, 2*source.BlockSize), 1))
	align := int64(source.BlockSize)
	if size/n >= 16*alignment {
		align = alignment
	}
	parts := make([]stagein.Part, n)
	off := int64(0)
	for i := range parts {
		end := size
		if int64(i) < n-1 {
			end = (size/n*int64(i+1) + size%n*int64(i+1)/n) / align * align
		}
		parts[i] = stagein.Part{Index: uint16(i), Node: nodes[i], Off: off, End: end, Bytes: end - off}
		off = end
	}
	parts[0].Off = source.BlockSize // Head is before it, and counts
	return parts
}

// evenly returns the expected share of size bytes on each node.
func evenly(size int64, nodes []metadata.NodeID) map[metadata.NodeID]int64 {
	need := make(map[metadata.NodeID]int64, len(nodes))
	for _, id := range nodes {
		need[id] = size / int64(len(nodes))
	}
	return need
}

// deal assigns every item to the owner of its path, and returns the bytes of each node.
func (cfg *Config) deal(p *stagein.Plan, items []source.Item, nodes []metadata.NodeID) map[metadata.NodeID]int64 {
	need := make(map[metadata.NodeID]int64, len(nodes))
	part := make(map[metadata.NodeID]int, len(nodes))
	p.Parts = make([]stagein.Part, len(nodes))
	for i, id := range nodes {
		p.Parts[i] = stagein.Part{Index: uint16(i), Node: id}
		part[id] = i
	}
	total := int64(0)
	for i := range items {
		total += cfg.local(&items[i])
	}
	b := cfg.Map.Balance(total)
	for _, it := range items {
		owner := b.Owner(it.Path, cfg.local(&it))
		to := &p.Parts[part[owner]]
		to.Items = append(to.Items, it)
		to.Bytes += it.Size
		p.Size += it.Size
		if it.Size <= cfg.Stripe {
			need[owner] += it.Size
			continue
		}
		for _, id := range nodes {
			need[id] += it.Size / int64(len(nodes))
		}
	}
	return need
}

// local returns the bytes of an item that only its owner will hold.
func (cfg *Config) local(it *source.Item) int64 {
	if it.Hardlink != "" || !it.Is(source.TypeRegular) || it.Size > cfg.Stripe {
		return 0
	}
	return it.Size
}

// allFree returns the free bytes of all nodes for which they are known.
func (cfg *Config) allFree() map[metadata.NodeID]int64 {
	if cfg.Free == nil {
		return nil
	}
	all := make(map[metadata.NodeID]int64)
	for _, id := range cfg.Map.Up() {
		if free, known := cfg.Free(id); known {
			all[id] = free
		}
	}
	return all
}

// sumFree returns the sum of the nodes' free bytes, at least 1; 0: not known.
func (cfg *Config) sumFree(nodes []metadata.NodeID) int64 {
	sum := int64(0)
	for _, id := range nodes {
		if cfg.Free == nil {
			return 0
		}
		free, known := cfg.Free(id)
		if !known || free > math.MaxInt64-sum {
			return 0
		}
		sum += max(free, 0)
	}
	return max(sum, 1)
}

// room returns ENOSPC if a node lacks the room that it needs.
func (cfg *Config) room(p *stagein.Plan, need map[metadata.NodeID]int64) error {
	if cfg.Free == nil {
		return nil
	}
	for _, id := range cfg.Map.Up() {
		free, known := cfg.Free(id)
		if !known || need[id] <= free {
			continue
		}
		n, _ := cfg.Map.Node(id)
		return fmt.Errorf("%s: %s needs room for %s and has %s (%s in all%s): %s: %w",
			cfg.Request.Source, n.Host, metadata.FormatBytes(need[id]), metadata.FormatBytes(free), metadata.FormatBytes(max(p.Size, p.Least)), p.SaidBy(), cfg.wayOut(p), syscall.ENOSPC)
	}
	return nil
}

const (
	moreRoom  = "give the job more nodes, or more space on each by a higher capacity= or a lower scratch= in --bivouac-opts or bivouac up"
	plainRoom = moreRoom + ", or pack it as a plain tar or a zip archive, of which files that do not fit are read from the source, or keep it as one file with unpack=no"
)

// wayOut returns the remedy for a source that does not fit.
func (cfg *Config) wayOut(p *stagein.Plan) string {
	switch {
	case p.Kind.Packed() || p.Kind == source.Many:
		return plainRoom
	case cfg.Request.Overflow == stagein.OverflowFail:
		return moreRoom + ", or leave overflow=fail out"
	}
	return moreRoom
}
