package stagein

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Forsaken is files of which lost nodes had something, and that stay in the source then.
type Forsaken struct {
	Bytes int64          // that the lost nodes had of them, on a disk at the most
	Wide  []metadata.Ino // of which other nodes have something, too
}

// Forsake copies the records of a part, with those of files of which something was stored on lost
// nodes as those of files that stay in the source, if they can be come to there. order is the nodes that
// have a file.
func (o *Origins) Forsake(lost func(metadata.NodeID) bool, order func(metadata.Ino, metadata.Layout) []metadata.NodeID, from io.Reader, to io.Writer) (all Forsaken, err error) {
	r, w := manifest.NewReader(from), manifest.NewWriter(to)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all, w.Close()
		}
		if err == nil && o.mayGo(&rec) {
			all.add(&rec, lost, order(rec.Attr.Ino, rec.Attr.Layout))
		}
		if err == nil {
			err = w.Add(rec)
		}
		if err != nil {
			return all, fmt.Errorf("records: %w", err)
		}
	}
}

// add has a file stay in the source if one of the nodes that have it is lost.
func (f *Forsaken) add(rec *manifest.Record, lost func(metadata.NodeID) bool, nodes []metadata.NodeID) {
	if !slices.ContainsFunc(nodes, lost) {
		return
	}
	file := &object{ino: rec.Attr.Ino, layout: rec.Attr.Layout, order: nodes}
	for i, id := range nodes {
		if lost(id) {
			f.Bytes += takesOf(file, rec.Attr.Size, i)
		}
	}
	if len(nodes) > 1 {
		f.Wide = append(f.Wide, rec.Attr.Ino)
	}
	if rec.Attr.Layout.Kind == metadata.Local {
		rec.Chunks = ""
	}
	rec.Attr.Layout = metadata.Layout{Kind: metadata.Spilled, ChunkSize: rec.Attr.Layout.ChunkSize}
}

// mayGo reports whether a file is on nodes, and could be read from the source.
func (o *Origins) mayGo(rec *manifest.Record) bool {
	n := rec.From.Source
	if !hasData(rec) || rec.Attr.Layout.Kind == metadata.Spilled || int(n) >= len(o.Sources) {
		return false
	}
	return o.Sources[n].Kind == source.Tar || len(o.Sources[n].Places) > 0
}

// HasRoom reports whether nodes that have so much free have room for so many bytes that fall
// to all of them.
func HasRoom(bytes int64, free []int64) bool {
	for _, n := range free {
		if each := bytes / int64(len(free)); each+each/4 > usable(n) {
			return false
		}
	}
	return len(free) > 0
}
