package pebblestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// MakeSection is metadata.Sections.
func (s *Store) MakeSection(_ context.Context, n metadata.NewSection) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	if s.here(n.Dir) || n.Dir.Sealed() || !isDir(n.Attr.Mode) || !slices.Contains(n.Nodes, s.cfg.Self) || !slices.IsSorted(n.Nodes) {
		return fmt.Errorf("section of directory %v: %w", n.Dir, syscall.EINVAL)
	}
	defer s.locks.lock(n.Dir).unlock()
	old, _ := s.wide.get(n.Dir)
	switch {
	case old != nil && old.gen > n.Gen:
		return fmt.Errorf("section %d of directory %v: %w", n.Gen, n.Dir, syscall.ESTALE)
	case old != nil && old.state == sectionOpen:
		return fmt.Errorf("section of directory %v is in use: %w", n.Dir, syscall.EBUSY)
	}
	t := s.step()
	defer t.close()
	d := &wideDir{
		Spread: cluster.Spread{Epoch: n.Epoch, Seed: n.Seed, Nodes: slices.Clone(n.Nodes)},
		gen:    n.Gen, state: sectionFilling,
	}
	t.note(t.b.DeleteRange(entryKey(n.Dir, ""), entriesEnd(n.Dir), nil))
	t.putWide(n.Dir, d)
	c := inode{Attr: n.Attr}
	c.Ino, c.Nlink, c.Atime = n.Dir, 2, n.Attr.Ctime
	t.put(&c)
	if err := t.commit(); err != nil {
		return err
	}
	s.wide.set(n.Dir, d)
	return nil
}

// section is the section of that life; ESTALE if it is not the present one.
// The caller holds the lock of its directory.
func (s *Store) section(sec metadata.Section) (*wideDir, error) {
	d, _ := s.wide.get(sec.Dir)
	if d == nil || d.gen != sec.Gen || s.here(sec.Dir) {
		return nil, fmt.Errorf("section %d of directory %v: %w", sec.Gen, sec.Dir, syscall.ESTALE)
	}
	return d, nil
}

// FillSection is metadata.Sections.
func (s *Store) FillSection(_ context.Context, sec metadata.Section, es []metadata.Entry) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	defer s.locks.lock(sec.Dir).unlock()
	d, err := s.section(sec)
	if err != nil {
		return err
	}
	if d.state != sectionFilling {
		return fmt.Errorf("section of directory %v is filled: %w", sec.Dir, syscall.EBUSY)
	}
	t := s.step()
	defer t.close()
	n, err := t.dir(sec.Dir)
	if err != nil {
		return err
	}
	for _, e := range es {
		if err := t.fill(n, e); err != nil {
			return err
		}
	}
	t.put(n)
	return t.commit()
}

// fill enters e into a section, or takes it out, and counts directories.
func (t *step) fill(n *inode, e metadata.Entry) error {
	if err := checkName(e.Name); err != nil {
		return err
	}
	old, err := t.s.entry(n.Ino, e.Name)
	if err != nil {
		return err
	}
	if isDir(old.mode) {
		n.Nlink--
	}
	if e.Ino == 0 {
		t.note(t.b.Delete(entryKey(n.Ino, e.Name), nil))
		return nil
	}
	if isDir(e.Mode) {
		n.Nlink++
	}
	t.note(t.b.Set(entryKey(n.Ino, e.Name), entry{e.Ino, e.Mode}.append(make([]byte, 0, 12)), nil))
	return nil
}

// ChangeSection is metadata.Sections.
func (s *Store) ChangeSection(_ context.Context, c metadata.SectionChange) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	defer s.locks.lock(c.Dir).unlock()
	d, err := s.section(c.Section)
	if err != nil {
		return err
	}
	switch c.Order {
	case metadata.SectionOpen:
		if err := s.inheritSection(c.Dir, c.Attr); err != nil {
			return err
		}
		return s.openSection(c.Dir, d, d.state == sectionFilling)
	case metadata.SectionThaw:
		return s.openSection(c.Dir, d, d.state == sectionFrozen && d.freeze == c.Freeze)
	case metadata.SectionFreeze:
		return s.freezeSection(c.Dir, d, c.Freeze)
	case metadata.SectionDrop:
		return s.dropSection(c.Dir, d)
	case metadata.SectionAttr:
		return s.inheritSection(c.Dir, c.Attr)
	}
	return fmt.Errorf("order %d to a section: %w", c.Order, syscall.EINVAL)
}

// SettleSection applies what a home has answered to the report r.
func (s *Store) SettleSection(r metadata.SectionReport, a metadata.SectionAnswer) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	defer s.locks.lock(r.Dir).unlock()
	d, err := s.section(r.Section)
	if err != nil {
		return nil // there is another one since
	}
	switch a.State {
	case metadata.SectionInUse:
		if err := s.inheritSection(r.Dir, a.Attr); err != nil {
			return err
		}
		return s.openSection(r.Dir, d, d.state == sectionFilling || d.freeze == r.Freeze && r.Freeze != 0)
	case metadata.SectionUnused:
		if d.state == sectionOpen {
			s.cfg.Log.WithField("dir", r.Dir.String()).Error("a home does not know of a section that is in use: its names are lost")
			return nil
		}
		return s.dropSection(r.Dir, d)
	}
	return nil
}

// openSection puts the section d in force if it is to be.
func (s *Store) openSection(dir metadata.Ino, d *wideDir, do bool) error {
	if !do {
		return nil
	}
	open := *d
	open.state, open.freeze = sectionOpen, 0
	return s.replaceWide(dir, &open)
}

func (s *Store) freezeSection(dir metadata.Ino, d *wideDir, freeze uint64) error {
	if d.state == sectionFilling || len(s.promises.in(dir)) > 0 {
		return &metadata.Unsettled{Dir: dir}
	}
	empty, err := s.empty(dir)
	if err != nil {
		return err
	}
	if !empty {
		return fmt.Errorf("section of directory %v: %w", dir, syscall.ENOTEMPTY)
	}
	frozen := *d
	frozen.state, frozen.freeze = sectionFrozen, freeze
	if err := s.replaceWide(dir, &frozen); err != nil {
		return err
	}
	s.NoteSection(dir)
	return nil
}

func (s *Store) replaceWide(dir metadata.Ino, d *wideDir) error {
	t := s.step()
	defer t.close()
	t.putWide(dir, d)
	if err := t.commit(); err != nil {
		return err
	}
	s.wide.set(dir, d)
	return nil
}

// dropSection forgets a section. One that is in force has entries that are
// nowhere else: a home that does not want it is wrong.
func (s *Store) dropSection(dir metadata.Ino, d *wideDir) error {
	if d.state == sectionOpen {
		return fmt.Errorf("section of directory %v is in use: %w", dir, syscall.EBUSY)
	}
	t := s.step()
	defer t.close()
	t.note(t.b.DeleteRange(entryKey(dir, ""), entriesEnd(dir), nil))
	t.note(t.b.Delete(wideKey(dir), nil))
	t.note(t.b.Delete(t.s.dirKey(dir), nil))
	if err := t.commit(); err != nil {
		return err
	}
	s.wide.set(dir, nil)
	return nil
}

// inheritSection makes new entries inherit from a, if that is not older than
// what they inherit from now. Its times and links are not this node's business.
func (s *Store) inheritSection(dir metadata.Ino, a metadata.Attr) error {
	t := s.step()
	defer t.close()
	n, err := t.dir(dir)
	if err != nil {
		return err
	}
	if a.Ctime < n.Atime || n.Mode == a.Mode && n.UID == a.UID && n.GID == a.GID && n.Layout == a.Layout {
		return nil
	}
	n.Mode, n.UID, n.GID, n.Layout, n.Atime = a.Mode, a.UID, a.GID, a.Layout, a.Ctime
	t.put(n)
	return t.commitQuiet()
}

// SectionReport is what the section of dir here has to tell; ENOENT if there
// is none.
func (s *Store) SectionReport(dir metadata.Ino) (metadata.SectionReport, error) {
	if err := s.begin(); err != nil {
		return metadata.SectionReport{}, err
	}
	defer s.end()
	defer s.locks.lock(dir).unlock()
	d, _ := s.wide.get(dir)
	if d == nil || s.here(dir) {
		return metadata.SectionReport{}, fmt.Errorf("section of directory %v: %w", dir, syscall.ENOENT)
	}
	t := s.step()
	defer t.close()
	n, err := t.dir(dir)
	if err != nil {
		return metadata.SectionReport{}, err
	}
	return metadata.SectionReport{
		Section: metadata.Section{Dir: dir, Gen: d.gen}, Freeze: d.freeze, Subdirs: n.Nlink - 2, Mtime: n.Mtime,
	}, nil
}

// Unsettled reports whether the section of dir here waits for its home.
func (s *Store) Unsettled(dir metadata.Ino) bool {
	d, _ := s.wide.get(dir)
	return d != nil && d.state != sectionOpen
}

// ReadNames is metadata.Namer. Of a section it lists what the store has: the
// table in memory knows of a change before the store has it, and the entries
// of all others are at the home until then.
func (s *Store) ReadNames(ctx context.Context, dir metadata.Ino, epoch metadata.Epoch, after string, limit int) ([]metadata.Entry, error) {
	return s.readDir(ctx, page{dir, after, limit}, func(snap *pebble.Snapshot) error {
		if epoch == 0 {
			return s.notWide(dir, reader{snap})
		}
		d, err := reader{snap}.wideDir(dir)
		switch {
		case err != nil:
			return err
		case d != nil && d.Epoch == epoch && d.state == sectionOpen:
			return nil
		case s.Epoch(dir) != epoch:
			return &metadata.Elsewhere{Dir: dir, Epoch: s.Epoch(dir)}
		}
		if !s.here(dir) {
			s.NoteSection(dir)
		}
		return &metadata.Unsettled{Dir: dir}
	}, entryOnly)
}

// wideDir is the record of a wide directory; nil if there is none.
func (r reader) wideDir(dir metadata.Ino) (*wideDir, error) {
	v, closer, err := r.r.Get(wideKey(dir))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, ioError("metadata store", err)
	}
	defer closer.Close()
	d, err := parseWideDir(v)
	if err != nil {
		return nil, fmt.Errorf("record of wide directory %v: %w", dir, err)
	}
	return d, nil
}
