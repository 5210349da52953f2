package pebblestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/varint"
)

// ReportSection is metadata.Sections.
func (s *Store) ReportSection(_ context.Context, by metadata.NodeID, r metadata.SectionReport) (metadata.SectionAnswer, error) {
	if err := s.begin(); err != nil {
		return metadata.SectionAnswer{}, err
	}
	defer s.end()
	if !s.here(r.Dir) || by == s.cfg.Self {
		return metadata.SectionAnswer{}, fmt.Errorf("report of a section of directory %v: %w", r.Dir, syscall.EINVAL)
	}
	defer s.locks.lock(r.Dir).unlock()
	d, g := s.wide.get(r.Dir)
	switch {
	case g != nil && g.gen == r.Gen && (g.dirty != nil || g.freeze == r.Freeze):
		return metadata.SectionAnswer{State: metadata.SectionWait}, nil
	case d == nil || d.gen != r.Gen:
		return metadata.SectionAnswer{State: metadata.SectionUnused}, nil
	}
	a, err := s.told(by, r)
	return metadata.SectionAnswer{State: metadata.SectionInUse, Attr: a}, err
}

// told takes what a section in use reports over into its directory. A change
// there that is older than the last one here, which may have set the time, does
// not count.
func (s *Store) told(by metadata.NodeID, r metadata.SectionReport) (metadata.Attr, error) {
	t := s.step()
	defer t.close()
	n, err := t.dir(r.Dir)
	if err != nil {
		return metadata.Attr{}, err
	}
	before, err := s.subdirs(r.Dir, by)
	if err != nil {
		return metadata.Attr{}, err
	}
	if r.Subdirs == before && r.Mtime <= n.Ctime {
		return n.Attr, nil
	}
	if r.Subdirs != before {
		n.Nlink += r.Subdirs - before
		t.note(t.b.Set(toldKey(r.Dir, by), binary.AppendUvarint(nil, uint64(r.Subdirs)), nil))
	}
	if r.Mtime > n.Ctime {
		n.Mtime, n.Ctime = r.Mtime, r.Mtime
	}
	t.put(n)
	return n.Attr, t.commit()
}

// subdirs is how many directories the section of node by had when it was last
// heard of.
func (s *Store) subdirs(dir metadata.Ino, by metadata.NodeID) (uint32, error) {
	v, err := s.get(toldKey(dir, by))
	if errors.Is(err, syscall.ENOENT) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	d := varint.Decoder{B: v}
	n := d.Uint32()
	if !d.Whole() {
		return 0, fmt.Errorf("record of a section of directory %v: %w", dir, syscall.EIO)
	}
	return n, nil
}

// Sections is the section of dir, whose home this is, and the nodes of all of
// them; no nodes if it is not wide.
func (s *Store) Sections(dir metadata.Ino) (metadata.Section, []metadata.NodeID) {
	d, _ := s.wide.get(dir)
	if d == nil || !s.here(dir) {
		return metadata.Section{}, nil
	}
	return metadata.Section{Dir: dir, Gen: d.gen}, d.Nodes
}

// SectionDirs is the directories of other nodes of which there is a section here.
func (s *Store) SectionDirs() []metadata.Ino {
	s.wide.mu.RLock()
	defer s.wide.mu.RUnlock()
	var all []metadata.Ino
	for dir := range s.wide.dirs {
		if !s.here(dir) {
			all = append(all, dir)
		}
	}
	return all
}
