package stagein

import (
	"errors"
	"fmt"
	"io"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Forsake copies the records of a part, with those of files that were stored whole on lost nodes as
// those of files that stay in the source, if they can be come to there. It says what such files
// take on a disk at the most. Of one that is stored on several nodes nothing changes.
func (o *Origins) Forsake(lost func(metadata.NodeID) bool, from io.Reader, to io.Writer) (bytes int64, err error) {
	r, w := manifest.NewReader(from), manifest.NewWriter(to)
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return bytes, w.Close()
		}
		if err == nil && o.mayGo(&rec) && lost(rec.Attr.Layout.Node) {
			bytes += pages(rec.Attr.Size)
			rec.Attr.Layout, rec.Chunks = metadata.Layout{Kind: metadata.Spilled}, ""
		}
		if err == nil {
			err = w.Add(rec)
		}
		if err != nil {
			return bytes, fmt.Errorf("records: %w", err)
		}
	}
}

// mayGo reports whether a file is whole on one node, and could be read from the source.
func (o *Origins) mayGo(rec *manifest.Record) bool {
	n := rec.From.Source
	if !hasData(rec) || rec.Attr.Layout.Kind != metadata.Local || int(n) >= len(o.Sources) {
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
