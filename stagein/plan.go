package stagein

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
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

// Number returns the number that the part's inodes carry. Each try has its own, so that nothing an earlier one still
// stores belongs to a file of this one.
func (p Part) Number(parts int) int { return int(p.Index) + int(p.Try)*parts }

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
		t := Try{Number: uint16(x.Number(len(p.Parts)))}
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

// SaidBy names the source of the needed size, for a message; "" if it is the size of the source.
func (p *Plan) SaidBy() string {
	if p.LeastBy == "" {
		return ""
	}
	return ", " + p.LeastBy
}

// Try is one attempt to read a part. Of the inodes that carry its number, those up to Kept are files of the dataset;
// later ones are void.
type Try struct {
	Number uint16 `json:"number"`
	Kept   uint32 `json:"kept,omitempty"`
}

// Checkpoints reports whether shares of the plan make checkpoints. Shares that must report at the end which names
// of a list were missing, or left out, make none.
func (p *Plan) Checkpoints() bool {
	return p.OnError == OnErrorFail && (p.Kind == source.Tar || p.Kind.Packed() || p.Kind == source.Many && p.List == "")
}

// Archive is one of several that make a dataset.
type Archive struct {
	Path  source.Name   `json:"path"` // with symbolic links followed
	Size  int64         `json:"size"`
	Mtime metadata.Time `json:"mtime"`
	Under source.Name   `json:"under,omitempty"` // the directory that its members are in
	// Number is that of the archive among all.
	Number uint32 `json:"number,omitempty"`
}

// ZipParts cuts an archive into at most n ranges of about the same size, each of which begins at a member, the second not
// before least.
func ZipParts(x *zip.Index, n, least int64) []Part {
	var parts []Part
	first, off := 0, int64(0)
	cut := func(last int, end int64) {
		parts = append(parts, Part{Index: uint16(len(parts)), Off: off, End: end, Bytes: end - off, Items: x.Items[first:last]})
		first, off = last, end
	}
	for i := 1; i < len(x.Items) && int64(len(parts)) < n-1; i++ {
		at, before := x.Items[i].Off, x.Items[i-1].Off
		want := off + (x.Start-off)/(n-int64(len(parts)))
		if at < want || at < least {
			continue
		}
		if want-before < at-want && before > off && before >= least {
			cut(i-1, before)
			continue
		}
		cut(i, at)
	}
	cut(len(x.Items), x.Start)
	return parts
}
