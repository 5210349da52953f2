package stagein

import (
	"context"
	"errors"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// OutConfig describes one node's share of a stage-out.
type OutConfig struct {
	Store metadata.Store // the namespace, as a client sees it
	Root  metadata.Ino   // the directory, or the file, that is copied
	// Read fills p from offset off of a file; fewer bytes mean its end.
	Read    func(ctx context.Context, a metadata.Attr, p []byte, off int64) (int, error)
	To      string // the directory that gets the contents of Root; made if it is not there
	Self    int    // this node's place among the N that copy
	N       int
	Workers int // files in flight; 0 is 8
	Log     *logrus.Entry
}

// OutResult is what a stage-out did.
type OutResult struct {
	Files    int64    `json:"files"`
	Dirs     int64    `json:"dirs"`
	Symlinks int64    `json:"symlinks"`
	Bytes    int64    `json:"bytes"`
	Failed   int64    `json:"failed,omitempty"` // things that did not make it
	Errors   []string `json:"errors,omitempty"` // of the first of them, one line each
}

// Out copies this node's share of a subtree.
func Out(ctx context.Context, cfg OutConfig) (OutResult, error) {
	return OutResult{}, errors.New("not yet")
}
