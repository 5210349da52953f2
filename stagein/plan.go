package stagein

import (
	"context"
	"fmt"
	"math"
	"slices"
	"syscall"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/walk"
)

// Plan says which node reads what of a source. It is JSON.
type Plan struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Name    string             `json:"name"`
	Source  source.Name        `json:"source"` // with symbolic links followed
	Kind    source.Kind        `json:"kind"`
	Size    int64              `json:"size"` // bytes that have to be read
	Mtime   metadata.Time      `json:"mtime"`
	Head    []byte             `json:"head,omitempty"` // the first block of an archive, read already
	Room    int64              `json:"room,omitempty"` // bytes that a compressed tar may unpack to; 0 is not known
	Read    int64              `json:"read,omitempty"` // bytes of an archive that were read already: the head is not among a tar's
	UID     uint32             `json:"uid"`            // who owns what is staged
	GID     uint32             `json:"gid"`
	Stripe  int64              `json:"stripe"`          // files larger than this are striped
	Under   source.Name        `json:"under,omitempty"` // the directory of the dataset that all of it is in
	Options `json:"options"`
	Skips   []Skip `json:"-"` // what the plan leaves out already
	// Origins is where the files can be fetched again when the dataset is published.
	Origins Origins `json:"-"`
	// Least is what compressed tars unpack to at the least, if that was determined, and what a zip archive unpacks to.
	Least   int64  `json:"least,omitempty"`
	LeastBy string `json:"least_by,omitempty"` // what states that
	// Free is what each node had left, in bytes, as far as that was known; WayOut is what to do if that is not enough.
	Free   map[metadata.NodeID]int64 `json:"free,omitempty"`
	WayOut string                    `json:"way_out,omitempty"`
	// Number is that of the source among several.
	Number uint32 `json:"-"`
	// Map places the files. It is the same for all parts and all tries.
	Map   cluster.Map `json:"map"`
	Parts []Part      `json:"parts"`
}

// Itemized reports whether parts list their items, of which a node needs only those of its own part.
func (p *Plan) Itemized() bool {
	return p.Kind == source.Dir || p.Kind == source.Zip || p.Kind == source.Many
}

// WholeArchives reports whether each archive is read by one node from front to end.
func (p *Plan) WholeArchives() bool { return p.Kind.Packed() || p.Kind == source.Many }

// Part is what one node reads.
type Part struct {
	Index uint16          `json:"index"`
	Node  metadata.NodeID `json:"node"`
	Try   uint16          `json:"try,omitempty"`   // how often it was begun before
	Off   int64           `json:"off,omitempty"`   // the region of an archive: from Off
	End   int64           `json:"end,omitempty"`   // to End
	Bytes int64           `json:"bytes"`           // of the source that the part has
	Items []source.Item   `json:"items,omitempty"` // of a directory or a zip archive
	// Archives is those of a part of several archives.
	Archives []Archive `json:"archives,omitempty"`
}

// number returns the number that the part's inodes carry. Each try has its own, so that nothing an earlier one still
// stores belongs to a file of this one.
func (p Part) number(parts int) int { return int(p.Index) + int(p.Try)*parts }

// Retry returns the plan with another try of a part, by node.
func (p *Plan) Retry(part int, node metadata.NodeID) *Plan {
	q := *p
	q.Parts = slices.Clone(p.Parts)
	q.Parts[part].Node = node
	q.Parts[part].Try++
	return &q
}

// Void returns all tries that were given up, with what was kept of them.
func (p *Plan) Void(kept []Try) []Try {
	var all []Try
	for i := range p.Parts {
		all = append(all, p.VoidOf(i, kept)...)
	}
	return all
}

// VoidOf returns the tries of a part that were given up, with what was kept of them.
func (p *Plan) VoidOf(part int, kept []Try) []Try {
	var all []Try
	for x := p.Parts[part]; x.Try > 0; {
		x.Try--
		t := Try{Number: uint16(x.number(len(p.Parts)))}
		for _, k := range kept {
			if k.Number == t.Number {
				t.Kept = k.Kept
			}
		}
		all = append(all, t)
	}
	return all
}

// Bare returns the part without the items, which only its reader needs.
func (p Part) Bare() Part {
	p.Items, p.Archives = nil, nil
	return p
}

// PlanConfig is the input of Scan and MakePlan.
type PlanConfig struct {
	FS      source.FS
	Request Request
	Dataset metadata.DatasetID
	Map     cluster.Map
	UID     uint32
	GID     uint32
	// Free returns what a node has left, in bytes; false: not known. nil: nothing is known.
	Free    func(metadata.NodeID) (int64, bool)
	Stripe  int64         // files larger than this are striped; 0 is DefaultStripe
	Region  int64         // the least bytes of a tar that are worth a node; 0 is 1 MiB
	Workers int           // of the walk of a directory; 0 is 128
	Others  []walk.Remote // look at what it has, too
	Log     *logrus.Entry
	// Scratch is where a scan keeps the members of tars; nil: the machine's directory for temporary files.
	Scratch *manifest.Scratch

	found *walk.Found // by Scan
	read  int64       // by Scan, before it left the source to a single pass
	// stored is about what the source takes on the nodes' disks, by Scan; 0: not known.
	stored int64
	load   func(size int64) int64 // by Scan: how many bytes of a file count for its owner's load
	loads  int64                  // by Scan: the sum over all files
	sel    *selection             // by Scan: what is wanted of archives
}

// detect detects the kind of what is at path, once.
func (cfg *PlanConfig) detect(path string) (walk.Found, error) {
	if cfg.found == nil {
		f, err := walk.Detect(cfg.FS, path)
		if err != nil {
			return f, err
		}
		cfg.found = &f
	}
	return *cfg.found, nil
}

// DefaultStripe is the size above which a file of a dataset is striped, in bytes.
const DefaultStripe = 64 << 20

const (
	defaultRegion = 1 << 20
	defaultWalk   = 128     // each waits for the source
	alignment     = 1 << 20 // of large regions, so that no two readers share a stripe of the source
)

// MakePlan divides a source that Scan has left to a single pass among the nodes that are up. It reads one block of a tar,
// which the plan carries, the central directory of a zip archive, and no data of a directory. It refuses, before a byte
// is copied, a source that cannot fit: a tar by what each node may expect, a compressed tar by what it states to unpack
// to (unpack.MinUnpacked). The single pass stops a compressed tar when it has unpacked to more than all nodes have.
func MakePlan(ctx context.Context, cfg *PlanConfig) (*Plan, error) {
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

func (cfg *PlanConfig) plan(ctx context.Context) (*Plan, error) {
	cfg.setDefaults()
	nodes := cfg.Map.Up()
	if len(nodes) == 0 {
		return nil, fmt.Errorf("%s: no node is up: %w", cfg.Request.Source, syscall.EHOSTDOWN)
	}
	paths, err := cfg.paths()
	if err != nil {
		return nil, err
	}
	p := &Plan{
		Dataset: cfg.Dataset, Name: cfg.Request.Name, Source: source.Name(cfg.Request.Source),
		UID: cfg.UID, GID: cfg.GID, Stripe: cfg.Stripe, Map: cfg.Map,
	}
	if len(paths) > 1 && cfg.Request.Unpack != UnpackNo {
		return p, cfg.planMany(ctx, p, paths, nodes)
	}
	if cfg.Request.Unpack == UnpackNo {
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
		if err := cfg.roomFor(ctx, p, []Archive{{Path: p.Source, Size: p.Size, Mtime: p.Mtime}}); err != nil {
			return nil, err
		}
		p.Parts = []Part{{Node: cfg.Map.FileOwner(found.Path), Off: int64(len(p.Head)), End: p.Size, Bytes: p.Size + p.Read}}
		return p, nil
	}
	if p.Kind == source.Zip {
		return p, cfg.planZip(p, found.Info, nodes)
	}
	return nil, fmt.Errorf("%s: a source of kind %q: %w", p.Source, p.Kind, syscall.EINVAL)
}

func (cfg *PlanConfig) setDefaults() {
	if cfg.Stripe <= 0 {
		cfg.Stripe = DefaultStripe
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

// regions cuts a tar, whose first block was read already, into one region for each node.
func regions(size, least int64, nodes []metadata.NodeID) []Part {
	n := min(int64(len(nodes)), max(size/max(least, 2*source.BlockSize), 1))
	align := int64(source.BlockSize)
	if size/n >= 16*alignment {
		align = alignment
	}
	parts := make([]Part, n)
	off := int64(0)
	for i := range parts {
		end := size
		if int64(i) < n-1 {
			end = (size/n*int64(i+1) + size%n*int64(i+1)/n) / align * align
		}
		parts[i] = Part{Index: uint16(i), Node: nodes[i], Off: off, End: end, Bytes: end - off}
		off = end
	}
	parts[0].Off = source.BlockSize // Head is before it, and counts
	return parts
}

// evenly returns what each node may expect to hold of size bytes.
func evenly(size int64, nodes []metadata.NodeID) map[metadata.NodeID]int64 {
	need := make(map[metadata.NodeID]int64, len(nodes))
	for _, id := range nodes {
		need[id] = size / int64(len(nodes))
	}
	return need
}

// deal gives every item to the owner of its path, and returns what each node will hold.
func (cfg *PlanConfig) deal(p *Plan, items []source.Item, nodes []metadata.NodeID) map[metadata.NodeID]int64 {
	need := make(map[metadata.NodeID]int64, len(nodes))
	part := make(map[metadata.NodeID]int, len(nodes))
	p.Parts = make([]Part, len(nodes))
	for i, id := range nodes {
		p.Parts[i] = Part{Index: uint16(i), Node: id}
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

// local returns the bytes of an item that its owner alone will hold.
func (cfg *PlanConfig) local(it *source.Item) int64 {
	if it.Hardlink != "" || !it.Is(source.TypeRegular) || it.Size > cfg.Stripe {
		return 0
	}
	return it.Size
}

// allFree returns what the nodes have left, as far as that is known.
func (cfg *PlanConfig) allFree() map[metadata.NodeID]int64 {
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

// sumFree returns what the nodes have left together, at least 1; 0: not known.
func (cfg *PlanConfig) sumFree(nodes []metadata.NodeID) int64 {
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
func (cfg *PlanConfig) room(p *Plan, need map[metadata.NodeID]int64) error {
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
			cfg.Request.Source, n.Host, metadata.FormatBytes(need[id]), metadata.FormatBytes(free), metadata.FormatBytes(max(p.Size, p.Least)), p.saidBy(), cfg.wayOut(p), syscall.ENOSPC)
	}
	return nil
}

// saidBy returns what states the size that is needed, for a message; "" if it is the size of the source.
func (p *Plan) saidBy() string {
	if p.LeastBy == "" {
		return ""
	}
	return ", " + p.LeastBy
}

const (
	moreRoom  = "give the job more nodes, or more space on each by a higher capacity= or a lower scratch= in --bivouac-opts or bivouac up"
	plainRoom = moreRoom + ", or pack it as a plain tar or a zip archive, of which files that do not fit are read from the source, or keep it as one file with unpack=no"
)

// wayOut returns what to do about a source that does not fit.
func (cfg *PlanConfig) wayOut(p *Plan) string {
	switch {
	case p.Kind.Packed() || p.Kind == source.Many:
		return plainRoom
	case cfg.Request.Spill == SpillFail:
		return moreRoom + ", or leave spill=fail out"
	}
	return moreRoom
}
