package stagein

import (
	"context"
	"errors"
	"io"

	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
	"github.com/bivouacfs/bivouac/stagein/source"
)

var errTODO = errors.New("not yet")

// Target is where staged bytes go: the objects of all nodes.
type Target interface {
	// Put writes all of p, at most wire.MaxData bytes, at off of the object
	// of ino on node. It keeps nothing of p.
	Put(ctx context.Context, node metadata.NodeID, ino metadata.Ino, p []byte, off int64) error
	// Remove takes an object away; it is no error if there is none.
	Remove(ctx context.Context, node metadata.NodeID, ino metadata.Ino) error
}

// ShareConfig is what a share needs.
type ShareConfig struct {
	Plan   *Plan // without the other parts' items
	Part   Part
	FS     source.FS
	Map    cluster.Map
	Target Target
	// SeamIn waits for the seam of the region before; SeamOut gives this
	// region's to the next. Neither is called for a directory, SeamIn not
	// for the first region, SeamOut not for the last.
	SeamIn  func(ctx context.Context) (Seam, error)
	SeamOut func(ctx context.Context, s Seam) error
	Records io.Writer // gets the records of the part, as manifest.Writer encodes them
	Memory  int64     // bytes of buffers; 0 is 64 MiB
	Workers int       // Puts in flight; 0 is 16
	Log     *logrus.Entry
}

// Share is one node's part of a stage-in.
type Share struct {
	cfg   ShareConfig
	count counters
}

// Seam is the state of the archive's reader at the end of a region.
type Seam struct {
	At    int64  `json:"at"`
	Carry []byte `json:"carry,omitempty"`
}

// NewShare checks cfg. Run does the work.
func NewShare(cfg ShareConfig) (*Share, error) { return &Share{cfg: cfg}, nil }

// Run stages the part. When it returns, all that it stored is stored and all
// records are written, or an error names what could not be.
func (s *Share) Run(ctx context.Context) error { return errTODO }

// Progress tells how far the share is.
func (s *Share) Progress() Progress {
	return Progress{
		SourceBytes: s.count.source.Load(), SourceTotal: s.cfg.Part.Bytes, Bytes: s.count.bytes.Load(),
		Files: s.count.files.Load(), Again: s.count.again.Load(), Done: s.count.done.Load(),
	}
}
