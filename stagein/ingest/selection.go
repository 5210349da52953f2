package ingest

import (
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// listed refuses, or skips, what is listed and is in no archive.
func (s *Share) listed() error {
	o := &s.cfg.Plan.Options
	missing := s.sel.Unseen()
	if o.OnError != stagein.OnErrorSkip {
		return stagein.Unlisted(o.List, missing)
	}
	for _, m := range missing {
		if err := s.skip(m, stagein.NotThere(o.List)); err != nil {
			return err
		}
	}
	return nil
}

// wants reports whether an item of an archive is wanted, and gives it its path in the dataset.
func (s *Share) wants(it *source.Item) bool {
	if !s.sel.Wanted(it) {
		return false
	}
	it.MoveUnder(string(s.cfg.Plan.Under))
	return true
}
