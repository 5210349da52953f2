package job

import (
	"bytes"
	"encoding/json"

	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// Dataset is a dataset to stage in.
type Dataset struct {
	Source  string // absolute path of an archive or a directory, or a pattern that matches several
	Name    string // under data/
	Options stagein.Options
}

// Request returns the dataset as a stagein.Request.
func (s Dataset) Request(seed uint64) stagein.Request {
	return stagein.Request{Source: s.Source, Name: s.Name, Seed: seed, Options: s.Options}
}

// Validate reports all errors in s.
func (s Dataset) Validate() error { return s.Request(0).Validate() }

// specJSON is Dataset in JSON. Paths are bytes, which JSON strings are not.
type specJSON struct {
	Source  source.Name     `json:"source"`
	Name    string          `json:"name"`
	Options stagein.Options `json:"options,omitzero"`
}

// MarshalJSON preserves a path that is not UTF-8.
func (s Dataset) MarshalJSON() ([]byte, error) {
	return json.Marshal(specJSON{source.Name(s.Source), s.Name, s.Options})
}

// UnmarshalJSON is the inverse of MarshalJSON; an unknown field is an error.
func (s *Dataset) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var j specJSON
	if err := d.Decode(&j); err != nil {
		return err
	}
	*s = Dataset{string(j.Source), j.Name, j.Options}
	return nil
}
