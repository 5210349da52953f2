package home

import (
	"context"

	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/opens"
)

// askWorkers is how many nodes are asked at a time.
const askWorkers = 8

// Interim is what the daemon does for the home until open files are handled here.
type Interim struct {
	Places func(ctx context.Context, a metadata.Attr, all bool) ([]metadata.NodeID, error)
	Remove func(ctx context.Context, id metadata.NodeID, inos []metadata.Ino) error
}

// Files is the open files of the home.
func (s *Server) Files() *opens.Files { return s.files }

// HeardRun notes the run of a node's client.
func (s *Server) HeardRun(by metadata.Holder) { s.heardRun(by) }

// Redirects wraps handlers of the home.
func Redirects(table node.Handlers) node.Handlers {
	for op, h := range table {
		table[op] = redirects(h)
	}
	return table
}
