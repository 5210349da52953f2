package stagein

import (
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
	"github.com/bivouacfs/bivouac/stagein/source/zip"
)

// Plan assigns the parts of a source to the nodes that read them. It is encoded as JSON.
type Plan struct {
	Dataset metadata.DatasetID `json:"dataset"`
	Name    string             `json:"name"`
	Source  source.Name        `json:"source"` // with symbolic links resolved
	Kind    source.Kind        `json:"kind"`
	Size    int64              `json:"size"` // bytes to be read
	Mtime   metadata.Time      `json:"mtime"`
	Head    []byte             `json:"head,omitempty"` // the first block of an archive, already read
	Room    int64              `json:"room,omitempty"` // bytes that a compressed tar may unpack to; 0: not known
	Read    int64              `json:"read,omitempty"` // bytes of an archive already read; for a tar, without the head
	UID     uint32             `json:"uid"`            // owner of the staged files
	GID     uint32             `json:"gid"`
	Stripe  int64              `json:"stripe"`          // files larger than this are striped
	Under   source.Name        `json:"under,omitempty"` // directory in the dataset that contains everything
	Options `json:"options"`
	Skips   []Skip `json:"-"` // entries that the plan already leaves out
	// Origins describes where files can be fetched from after the dataset is published.
	Origins Origins `json:"-"`
	// Least is the minimum that compressed tars unpack to, if determined, or the unpacked size of a zip archive.
	Least   int64  `json:"least,omitempty"`
	LeastBy string `json:"least_by,omitempty"` // what states Least
	// Free is each node's free bytes, as far as known; WayOut tells the user what to do if that is not enough.
	Free   map[metadata.NodeID]int64 `json:"free,omitempty"`
	WayOut string                    `json:"way_out,omitempty"`
	// Number is the index of the source among several.
	Number uint32 `json:"-"`
	// Map places the files. It is the same for all parts and all tries.
	Map   cluster.Map `json:"map"`
	Parts []Part      `json:"parts"`
}

// Itemized reports whether parts list their items, of which a node needs only those of its own part.
func (p *Plan) Itemized() bool {
	return p.Kind == source.Dir || p.Kind == source.Zip || p.Kind == source.Many
}

// WholeArchives reports whether each archive is read by one node, front to back.
func (p *Plan) WholeArchives() bool { return p.Kind.Packed() || p.Kind == source.Many }

// Part is the part of a source that one node reads.
type Part struct {
	Index uint16          `json:"index"`
	Node  metadata.NodeID `json:"node"`
	Try   uint16          `json:"try,omitempty"`   // number of earlier tries
	Off   int64           `json:"off,omitempty"`   // start of the region of an archive
	End   int64           `json:"end,omitempty"`   // end of the region
	Bytes int64           `json:"bytes"`           // bytes of the source in the part
	Items []source.Item   `json:"items,omitempty"` // of a directory or a zip archive
	// Archives lists the archives of a part, if the source has several.
	Archives []Archive `json:"archives,omitempty"`
}

// Number returns the number that the part's inodes carry. Each try has its own number, so that late stores of an
// earlier try cannot belong to a file of this one.
func (p Part) Number(parts int) int { return int(p.Index) + int(p.Try)*parts }

// Retry returns the plan with a new try of a part, by node.
func (p *Plan) Retry(part int, node metadata.NodeID) *Plan {
	q := *p
	q.Parts = slices.Clone(p.Parts)
	q.Parts[part].Node = node
	q.Parts[part].Try++
	return &q
}

// Void returns all abandoned tries, with the inodes kept of each.
func (p *Plan) Void(kept []Try) []Try {
	var all []Try
	for i := range p.Parts {
		all = append(all, p.VoidOf(i, kept)...)
	}
	return all
}

// VoidOf returns the abandoned tries of a part, with the inodes kept of each.
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

// Bare returns the part without its items, which only its reader needs.
func (p Part) Bare() Part {
	p.Items, p.Archives = nil, nil
	return p
}

// SaidBy returns, for a message, what states the needed size, or "" if that is the size of the source.
func (p *Plan) SaidBy() string {
	if p.LeastBy == "" {
		return ""
	}
	return ", " + p.LeastBy
}

// Try is one attempt to read a part. Of the inodes with its number, those up to Kept are files of the dataset; later
// ones are void.
type Try struct {
	Number uint16 `json:"number"`
	Kept   uint32 `json:"kept,omitempty"`
}

// Checkpoints reports whether shares of the plan make checkpoints. Shares that must report at the end which listed
// names were missing or left out make none.
func (p *Plan) Checkpoints() bool {
	return p.OnError == OnErrorFail && (p.Kind == source.Tar || p.Kind.Packed() || p.Kind == source.Many && p.List == "")
}

// Archive is one of several archives that make up a dataset.
type Archive struct {
	Path  source.Name   `json:"path"` // with symbolic links resolved
	Size  int64         `json:"size"`
	Mtime metadata.Time `json:"mtime"`
	Under source.Name   `json:"under,omitempty"` // directory that contains its members
	// Number is the index of the archive among all.
	Number uint32 `json:"number,omitempty"`
}

// ZipParts cuts an archive into at most n ranges of similar size, each of which begins at a member, the second not
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
