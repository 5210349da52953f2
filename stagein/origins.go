package stagein

import (
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein/archive"
)

// Origins describes the sources of a dataset for nodes that fetch its files after publication. It is encoded as JSON.
type Origins struct {
	Sources     []archive.Origin `json:"sources"`                // numbered by manifest.Origin.Source
	Order       Order            `json:"order"`                  // of the fill
	HasOverflow bool             `json:"has_overflow,omitempty"` // some files overflow: they stay in the source
	Staged      bool             `json:"staged,omitempty"`       // all files were stored when the manifest was published
	// Since is the epoch in which staging began. A node that was lost after it holds no data of the dataset.
	Since metadata.Epoch `json:"since,omitempty"`
	// Void lists the abandoned tries. Nodes remove their inodes that were not kept.
	Void []Try `json:"void,omitempty"`
}
