package daemon

import (
	"bytes"
	"encoding/json"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// DatasetSpec is a dataset to stage in.
type DatasetSpec struct {
	Source  string // absolute path of an archive or a directory, or a pattern of such
	Name    string // under data/
	Options stagein.Options
}

// request is the spec as stage-in takes it.
func (s DatasetSpec) request(seed uint64) stagein.Request {
	return stagein.Request{Source: s.Source, Name: s.Name, Seed: seed, Options: s.Options}
}

// Validate says what is wrong with s before anything is touched.
func (s DatasetSpec) Validate() error { return s.request(0).Validate() }

// specJSON is DatasetSpec in JSON. Paths are bytes, which JSON strings are not.
type specJSON struct {
	Source  source.Name     `json:"source"`
	Name    string          `json:"name"`
	Options stagein.Options `json:"options,omitzero"`
}

// MarshalJSON keeps a path that is not UTF-8.
func (s DatasetSpec) MarshalJSON() ([]byte, error) {
	return json.Marshal(specJSON{source.Name(s.Source), s.Name, s.Options})
}

// UnmarshalJSON is the inverse of MarshalJSON; an unknown field is an error.
func (s *DatasetSpec) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var j specJSON
	if err := d.Decode(&j); err != nil {
		return err
	}
	*s = DatasetSpec{string(j.Source), j.Name, j.Options}
	return nil
}
