package stagein

import (
	"fmt"

	"github.com/bivouacfs/bivouac/metadata/manifest"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Skip is an unreadable entry that is left out of the dataset (OnErrorSkip). It is encoded as a line of JSON.
type Skip struct {
	Path  source.Name `json:"path"` // of the entry in the source, or of the archive
	Error string      `json:"error"`
}

// LeftOut returns the Skip for a record that does not fit into the tree: see manifest.BuildConfig.Leave.
func (p *Plan) LeftOut(r *manifest.Record, why error) Skip {
	in, at := p.Source, ""
	if n := int(r.From.Source); r.From.Off > 0 && n < len(p.Origins.Sources) {
		in = p.Origins.Sources[n].Path
	}
	if r.From.Off > 0 {
		at = fmt.Sprintf(" with its data at offset %d", r.From.Off)
	}
	return Skip{source.Name(r.Path), fmt.Sprintf("%s: member%s: %v", in, at, why)}
}
