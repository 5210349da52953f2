package stagein

import (
	"fmt"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
	"syscall"
)

// Origins is what a dataset is made of, for those who fetch its files when its
// manifest is published already. It is JSON on its way to the nodes.
type Origins struct {
	Sources []archive.Origin `json:"sources"`          // a manifest.Origin names them by number
	Order   Order            `json:"order"`            // of the fill
	Spills  bool             `json:"spills,omitempty"` // some files stay where they are
	Staged  bool             `json:"staged,omitempty"` // all was there when the manifest was published
	// Since is the epoch in which that began: a node that was lost afterwards has
	// nothing of it.
	Since metadata.Epoch `json:"since,omitempty"`
	// Void is the tries whose inodes are nobody's, after those that were kept: a node that
	// was lost had begun with them.
	Void []Try `json:"void,omitempty"`
}

// SetRestartPoints takes over the restart points of a source.
func (o *Origins) SetRestartPoints(number uint32, points []byte) error {
	if int(number) >= len(o.Sources) {
		return fmt.Errorf("restart points of source %d of %d: %w", number, len(o.Sources), syscall.EPROTO)
	}
	o.Sources[number].RestartPoints = points
	return nil
}
