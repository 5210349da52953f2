package dataset

import (
	"github.com/bivouacfs/bivouac/daemon/node"
	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/fill"
)

// FillReport is the progress of a node that fetches the files of a dataset.
type FillReport struct {
	Complete metadata.Epoch   `json:"complete,omitempty"` // the node has all files assigned by the map of this epoch
	Error    string           `json:"error,omitempty"`    // why the node cannot fetch its files
	Progress stagein.Progress `json:"progress"`
	// Unreadable lists files that stay in the source and that this node cannot read there; More counts the unlisted
	// ones.
	Unreadable []fill.Unreadable `json:"unreadable,omitempty"`
	More       int64             `json:"more,omitempty"`
	// Overflow counts the files that the node owns and reads through; Missing counts further files that it could not
	// fetch, and Lack is the reason for one of these.
	Overflow fill.Overflow `json:"overflow,omitzero"`
	Missing  int64         `json:"missing,omitempty"`
	Lack     string        `json:"lack,omitempty"`
}

// Complete reports whether this node has all files of a dataset that it owns.
func (f *Fills) Complete(id metadata.DatasetID) bool {
	x, _ := f.get(id)
	if x == nil {
		return false
	}
	_, whole := x.Done()
	return whole
}

// Report returns this node's progress with each dataset.
func (f *Fills) Report() map[metadata.DatasetID]FillReport {
	all := make(map[metadata.DatasetID]FillReport)
	for id, x := range f.all() {
		e, whole := x.Done()
		r := FillReport{Progress: x.Progress(), Overflow: x.Overflow()}
		if n, why := x.Missing(); n > 0 {
			r.Missing, r.Lack = n, node.Clip(node.ErrorText(why))
		}
		if whole {
			r.Complete = e
		}
		if err := x.Err(); err != nil {
			r.Error = node.Clip(node.ErrorText(err))
		}
		r.Unreadable, r.More = unreadable(x)
		all[id] = r
	}
	return all
}

// maxUnreadableText bounds the text reported for an unreadable file, in bytes.
const maxUnreadableText = 1 << 10

func unreadable(x *fill.Fill) (all []fill.Unreadable, more int64) {
	all, more = x.Unreadable()
	for i := range all {
		all[i].Error = all[i].Error[:min(len(all[i].Error), maxUnreadableText)]
	}
	return all, more
}

// Unreadable returns the files of a dataset that this node cannot read from the source, and how many more it does not
// list. It reports false if the node does not fetch the dataset.
func (f *Fills) Unreadable(id metadata.DatasetID) (all []fill.Unreadable, more int64, ok bool) {
	x, _ := f.get(id)
	if x == nil {
		return nil, 0, false
	}
	all, more = unreadable(x)
	return all, more, true
}
