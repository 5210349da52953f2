package ingest

import (
	"errors"
	"fmt"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/stagein"
	"github.com/bivouacfs/bivouac/stagein/source"
)

// full explains a failed put to a full node: the room it needs and had, and what to do.
func (s *Share) full(err error) error {
	var put *putError
	if !stagein.IsFull(err) || !errors.As(err, &put) {
		return err
	}
	return s.lacks(put.node, s.count.to(put.node).Load(), err)
}

// lacks adds to err the room that a node needs and had, and what to do. given is how many bytes this share sent it.
func (s *Share) lacks(node metadata.NodeID, given int64, err error) error {
	p := s.cfg.Plan
	least, by := p.Least, p.SaidBy()
	if p.Kind == source.Tar {
		least = p.Size
	}
	sum := "in all" + by
	if so := s.count.bytes.Load(); so > least {
		least, sum = so, "so far"
	}
	if n := int64(len(s.cfg.Map.Up())); n > 0 {
		given = max(given, least/n)
	}
	had := ""
	free, known := p.Free[node]
	if known && given <= free {
		return fmt.Errorf("%s is full: it had room for %s when the stage-in began, and got %s of %s: scratch, another stage-in or the last pages of files took the rest: %s: %w",
			s.host(node), metadata.FormatBytes(free), metadata.FormatBytes(given), metadata.FormatBytes(least), p.WayOut, err)
	}
	if known {
		had = fmt.Sprintf(" and had %s when the stage-in began", metadata.FormatBytes(free))
	}
	return fmt.Errorf("%s needs room for at least %s%s (%s %s): %s: %w", s.host(node), metadata.FormatBytes(given), had, metadata.FormatBytes(least), sum, p.WayOut, err)
}

// fullest returns the node with the least known room left, and how many bytes this share sent it.
func (s *Share) fullest() (node metadata.NodeID, given int64) {
	least := int64(-1)
	for id, free := range s.cfg.Plan.Free {
		n := s.count.to(id).Load()
		if left := max(free-n, 0); least < 0 || left < least || left == least && id < node {
			node, given, least = id, n, left
		}
	}
	return node, given
}
