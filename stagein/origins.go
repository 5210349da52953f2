package stagein

import (
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
)

// Origins is the sources of a dataset, for nodes that fetch its files after the manifest was published. It is JSON.
type Origins struct {
	Sources     []archive.Origin `json:"sources"`                // a manifest.Origin names them by number
	Order       Order            `json:"order"`                  // of the fill
	HasOverflow bool             `json:"has_overflow,omitempty"` // some files overflow: they stay in the source
	Staged      bool             `json:"staged,omitempty"`       // all files were stored when the manifest was published
	// Since is the epoch in which staging began. A node that was lost after it has nothing of the dataset.
	Since metadata.Epoch `json:"since,omitempty"`
	// Void is the tries that were given up. Nodes remove the inodes of them that were not kept.
	Void []Try `json:"void,omitempty"`
}
