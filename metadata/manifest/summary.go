package manifest

import (
	"encoding/json"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Summary has the totals of a manifest. A file with several names counts once.
type Summary struct {
	Files    int64                         `json:"files"` // regular files
	Dirs     int64                         `json:"dirs"`  // directories below the root
	Symlinks int64                         `json:"symlinks"`
	Links    int64                         `json:"links"`    // further names of files
	Bytes    int64                         `json:"bytes"`    // of regular files
	Digest   string                        `json:"digest"`   // xxh3-128 of the encoded manifest, in hex
	PerNode  map[metadata.NodeID]NodeShare `json:"per_node"` // files stored whole on one node
	Striped  NodeShare                     `json:"striped"`  // files striped over several nodes
	Overflow NodeShare                     `json:"overflow"` // files on no node, read from the source
}

// NodeShare counts the files and bytes that one node holds.
type NodeShare struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

func (s NodeShare) plus(bytes int64) NodeShare {
	return NodeShare{Files: s.Files + 1, Bytes: s.Bytes + bytes}
}

// add counts a record of a manifest that is the first name of its inode.
func (s *Summary) add(r *Record) {
	if isDir(r.Attr.Mode) {
		if r.Path != "" {
			s.Dirs++
		}
		return
	}
	if fileType(r.Attr.Mode) == syscall.S_IFLNK {
		s.Symlinks++
		return
	}
	s.Files++
	s.Bytes += r.Attr.Size
	if r.Attr.Layout.Kind == metadata.Overflow {
		s.Overflow = s.Overflow.plus(r.Attr.Size)
		return
	}
	if r.Attr.Layout.Kind != metadata.Local {
		s.Striped = s.Striped.plus(r.Attr.Size)
		return
	}
	if s.PerNode == nil {
		s.PerNode = make(map[metadata.NodeID]NodeShare)
	}
	s.PerNode[r.Attr.Layout.Node] = s.PerNode[r.Attr.Layout.Node].plus(r.Attr.Size)
}

// stored is the Summary as stored in a table.
type stored struct {
	Version int                `json:"version"`
	Dataset metadata.DatasetID `json:"dataset"`
	Summary
}

const tableVersion = 3

func (s Summary) encode(ds metadata.DatasetID) ([]byte, error) {
	return json.Marshal(stored{Version: tableVersion, Dataset: ds, Summary: s})
}

func parseSummary(ds metadata.DatasetID, b []byte) (Summary, error) {
	var s stored
	if err := json.Unmarshal(b, &s); err != nil {
		return Summary{}, fmt.Errorf("summary: %w: %w", syscall.EIO, err)
	}
	if s.Version != tableVersion || s.Dataset != ds {
		return Summary{}, fmt.Errorf("table of dataset %d, version %d, want dataset %d, version %d: %w",
			s.Dataset, s.Version, ds, tableVersion, syscall.EIO)
	}
	return s.Summary, nil
}
