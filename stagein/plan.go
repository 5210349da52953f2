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

// Plan says who reads what of a source. It is JSON on its way to the nodes.
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
	// Origins is where what the plan stages can be fetched again, for those who fill
	// the dataset when it is published.
	Origins Origins `json:"-"`
	// Least is what compressed tars unpack to at the least, if that was looked for, and
	// what a zip archive does.
	Least   int64  `json:"least,omitempty"`
	LeastBy string `json:"least_by,omitempty"` // who says so
	// Free is what each node had left, in bytes, as far as that was known, and WayOut what
	// can be done if that is not enough.
	Free   map[metadata.NodeID]int64 `json:"free,omitempty"`
	WayOut string                    `json:"way_out,omitempty"`
	// Number is that of the source among several.
	Number uint32 `json:"-"`
	// Map is where what is staged goes: for all parts the same, also for one that is
	// begun again when a node is lost.
	Map   cluster.Map `json:"map"`
	Parts []Part      `json:"parts"`
}

// Itemized reports whether the parts list what they have, so that a node needs
// the items of its own part, and of no other.
func (p *Plan) Itemized() bool {
	return p.Kind == source.Dir || p.Kind == source.Zip || p.Kind == source.Many
}

// WholeArchives reports whether each archive is read by one node from front to end.
func (p *Plan) WholeArchives() bool { return p.Kind.Packed() || p.Kind == source.Many }

// Part is what one node reads.
type Part struct {
	Index uint16          `json:"index"`
	Node  metadata.NodeID `json:"node"`
	Try   uint16          `json:"try,omitempty"`   // how often it was begun before, by nodes that were lost
	Off   int64           `json:"off,omitempty"`   // the region of an archive: from Off
	End   int64           `json:"end,omitempty"`   // to End
	Bytes int64           `json:"bytes"`           // of the source that the part has
	Items []source.Item   `json:"items,omitempty"` // of a directory or a zip archive
	// Archives is what a part of several archives has, each read by this node alone.
	Archives []Archive `json:"archives,omitempty"`
}

// number is that of the inodes that the part makes: another one for each try, so
// that nothing an earlier one still stores is taken for something of this.
func (p Part) number(parts int) int { return int(p.Index) + int(p.Try)*parts }

// Again is the plan with a part that was begun in vain, by a node that was lost,
// and is begun again by node.
func (p *Plan) Retry(part int, node metadata.NodeID) *Plan {
	q := *p
	q.Parts = slices.Clone(p.Parts)
	q.Parts[part].Node = node
	q.Parts[part].Try++
	return &q
}

// Void is the tries that were in vain, but for what of them was kept.
func (p *Plan) Void(kept []Try) []Try {
	var all []Try
	for i := range p.Parts {
		all = append(all, p.VoidOf(i, kept)...)
	}
	return all
}

// VoidOf is the tries of a part that were in vain, but for what of them was kept.
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

// Bare is the part without what only the node that reads it has to know.
func (p Part) Bare() Part {
	p.Items, p.Archives = nil, nil
	return p
}

// PlanConfig is what a plan is made of.
type PlanConfig struct {
	FS      source.FS
	Request Request
	Dataset metadata.DatasetID
	Map     cluster.Map
	UID     uint32
	GID     uint32
	// Free tells what a node has left, in bytes; false if it is not known.
	// nil is: nothing is known.
	Free    func(metadata.NodeID) (int64, bool)
	Stripe  int64         // files larger than this are striped; 0 is DefaultStripe
	Region  int64         // the least bytes of a tar that are worth a node; 0 is 1 MiB
	Workers int           // of the walk of a directory; 0 is 128
	Others  []walk.Remote // look at what it has, too
	Log     *logrus.Entry
	// Scratch is where a scan keeps what it has found in tars; nil is the
	// machine's directory for temporary files.
	Scratch *manifest.Scratch

	found *walk.Found // by Scan
	read  int64       // by Scan, to find that the source shall be read to be known
	// stored is about what the source takes on the nodes' disks, by Scan; 0 is not known.
	stored int64
	sel    *selection // by Scan: what is wanted of archives
}

// detect looks at what is at path, once.
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

// DefaultStripe is the size above which a sealed file is striped, in bytes.
const DefaultStripe = 64 << 20

const (
	defaultRegion = 1 << 20
	defaultWalk   = 128     // each waits for the source
	alignment     = 1 << 20 // of large regions, so that no two readers share a stripe of the source
)

// MakePlan looks at a source that Scan has left and divides it among the nodes that are up. It
// reads one block of a tar, which the plan carries, the central directory of a
// zip archive, and no data of a directory.
// It refuses, before a byte is copied, what the nodes have no room for; of a
// tar, whose members are not known yet, it knows only what each node may expect, of a
// compressed one what that unpacks to at the least (unpack.MinUnpacked), and stops it
// when it has unpacked to more than all have.
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

// regions cuts a tar. Its first block is read already.
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

// evenly is what each node may expect to hold of a tar.
func evenly(size int64, nodes []metadata.NodeID) map[metadata.NodeID]int64 {
	need := make(map[metadata.NodeID]int64, len(nodes))
	for _, id := range nodes {
		need[id] = size / int64(len(nodes))
	}
	return need
}

// deal gives every item to the node that owns its path, and says what each
// node will hold.
func (cfg *PlanConfig) deal(p *Plan, items []source.Item, nodes []metadata.NodeID) map[metadata.NodeID]int64 {
	need := make(map[metadata.NodeID]int64, len(nodes))
	part := make(map[metadata.NodeID]int, len(nodes))
	p.Parts = make([]Part, len(nodes))
	for i, id := range nodes {
		p.Parts[i] = Part{Index: uint16(i), Node: id}
		part[id] = i
	}
	for _, it := range items {
		owner := cfg.Map.FileOwner(it.Path)
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

// allFree is what the nodes have left, as far as that is known.
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

// sumFree is what the nodes have left together, at least 1; 0 is not known.
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

// room refuses what does not fit.
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
			p.Source, n.Host, size(need[id]), size(free), size(max(p.Size, p.Least)), p.saidBy(), cfg.wayOut(p), syscall.ENOSPC)
	}
	return nil
}

// saidBy is who says what is needed, if that is not the source's size.
func (p *Plan) saidBy() string {
	if p.LeastBy == "" {
		return ""
	}
	return ", " + p.LeastBy
}

const (
	moreRoom  = "give the job more nodes or more capacity="
	plainRoom = moreRoom + ", or pack it as a plain tar or a zip archive, of which files that do not fit are read from the source, or keep it as one file with unpack=no"
)

// wayOut is what can be done about something for which there is no room.
func (cfg *PlanConfig) wayOut(p *Plan) string {
	switch {
	case p.Kind.Packed() || p.Kind == source.Many:
		return plainRoom
	case cfg.Request.Spill == SpillFail:
		return moreRoom + ", or leave spill=fail out"
	}
	return moreRoom
}

// size writes bytes for people.
func size(n int64) string {
	const units = "KMGTPE"
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	x, u := float64(n)/1024, 0
	for x >= 1024 && u < len(units)-1 {
		x, u = x/1024, u+1
	}
	return fmt.Sprintf("%.1f %ciB", x, units[u])
}
