package pebblestore

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// edit is an edit of a transaction in progress.
type edit struct {
	metadata.Edit
	old metadata.Ino  // inode of the entry when it was prepared
	at  metadata.Time // time of the prepare, which the inodes of the vote carry
}

// takeEdits validates edits for this store, and copies them.
func (s *transactions) takeEdits(edits []metadata.Edit) ([]edit, error) {
	if len(edits) == 0 || len(edits) > metadata.MaxEdits {
		return nil, fmt.Errorf("%d edits: %w", len(edits), syscall.EINVAL)
	}
	taken := make([]edit, len(edits))
	for i, e := range edits {
		taken[i].Edit = e
		var err error
		switch e.Kind {
		case metadata.EditKeep, metadata.EditEnter, metadata.EditReplace, metadata.EditSwap, metadata.EditLeave:
			err = s.checkEntryEdit(e)
		case metadata.EditMake:
			if e.New == nil || e.Ino != 0 && !s.here(e.Ino) {
				err = syscall.EINVAL
			}
		case metadata.EditDrop, metadata.EditLink, metadata.EditUnlink, metadata.EditMoved:
			if !s.here(e.Ino) {
				err = syscall.ENOENT
			}
		default:
			err = syscall.EINVAL
		}
		if err != nil {
			return nil, fmt.Errorf("edit of kind %d of %v: %w", e.Kind, e.Ino, err)
		}
	}
	return taken, nil
}

func (s *transactions) checkEntryEdit(e metadata.Edit) error {
	if err := checkName(e.Name); err != nil {
		return err
	}
	if e.Kind == metadata.EditKeep || e.Kind == metadata.EditLeave {
		return nil
	}
	if e.Ino == 0 || e.Ino.Sealed() || e.Mode&syscall.S_IFMT == 0 {
		return fmt.Errorf("entry of mode %o: %w", e.Mode, syscall.EINVAL)
	}
	return nil
}

// withEdits runs fn with the stripes of all inodes of the edits locked, including replaced inodes.
func (s *transactions) withEdits(edits []edit, fn func() error) error {
	for {
		seen, err := s.targets(edits)
		if err != nil {
			return err
		}
		again, err := s.withEditsLocked(edits, seen, fn)
		if !again {
			return err
		}
	}
}

// targets returns the current inodes of the entries.
func (s *transactions) targets(edits []edit) ([]entry, error) {
	seen := make([]entry, len(edits))
	for i, e := range edits {
		if e.Dir == 0 {
			continue
		}
		var err error
		if seen[i], err = s.entry(e.Dir, e.Name); err != nil {
			return nil, err
		}
	}
	return seen, nil
}

func (s *transactions) withEditsLocked(edits []edit, seen []entry, fn func() error) (again bool, err error) {
	inos := make([]metadata.Ino, 0, 3*len(edits))
	for i, e := range edits {
		inos = append(inos, e.Dir, e.Ino, seen[i].ino)
	}
	defer s.locks.lock(inos...).unlock()
	now, err := s.targets(edits)
	if err != nil {
		return false, err
	}
	for i := range now {
		if now[i] != seen[i] {
			return true, nil
		}
	}
	return false, fn()
}

// apply applies the edits in the step, and returns the locks that they need. It sets the Ino of an EditMake and the old
// inodes of entries; again means that the edits were applied before, in a dry run.
func (t *step) apply(edits []edit, again bool) (metadata.Vote, []txLock, error) {
	a := applied{step: t, again: again}
	for i := range edits {
		if !again {
			edits[i].at = t.now
		}
		if err := a.edit(&edits[i]); err != nil {
			return metadata.Vote{}, a.locks, err
		}
	}
	return a.vote, a.locks, nil
}

// applied is the state while edits are applied.
type applied struct {
	*step
	again bool
	vote  metadata.Vote
	locks []txLock
}

func (a *applied) edit(e *edit) error {
	switch e.Kind {
	case metadata.EditMake:
		return a.makeDir(e)
	case metadata.EditDrop, metadata.EditLink, metadata.EditUnlink, metadata.EditMoved:
		return a.editInode(e)
	}
	a.locks = append(a.locks, lockDir(e.Dir))
	d, err := a.entryDir(e)
	if err != nil {
		return err
	}
	old, err := a.s.entry(e.Dir, e.Name)
	if err != nil {
		return err
	}
	a.locks = append(a.locks, lockName(e.Dir, e.Name))
	if a.again && e.old != old.ino {
		return named(e.Dir, e.Name, changed(*e, old))
	}
	e.old = old.ino
	if err := a.editEntry(e, d, old); err != nil {
		return named(e.Dir, e.Name, err)
	}
	return nil
}

// entryDir returns the directory of an edit's entry, which must be in this node's shard. Edits that are already
// prepared may be applied in any shard.
func (a *applied) entryDir(e *edit) (*inode, error) {
	if a.again {
		return a.dir(e.Dir)
	}
	return a.dirOf(e.Dir, e.Name)
}

func (a *applied) editEntry(e *edit, d *inode, old entry) error {
	switch e.Kind {
	case metadata.EditKeep:
		return keep(e.Ino, old)
	case metadata.EditLeave:
		if old.ino != e.Ino {
			return syscall.ESTALE
		}
		a.leave(d, e.Name)
	case metadata.EditEnter:
		if old.ino != 0 {
			return syscall.EEXIST
		}
		a.enter(d, e.Name, entry{e.Ino, e.Mode})
	case metadata.EditReplace, metadata.EditSwap:
		if err := a.replace(e, d, old); err != nil || old.ino == e.Ino {
			return err
		}
		a.enter(d, e.Name, entry{e.Ino, e.Mode})
	}
	if old.ino != 0 && isDir(old.mode) {
		d.Nlink--
	}
	if e.Kind != metadata.EditLeave && isDir(e.Mode) {
		d.Nlink++
	}
	a.put(d)
	return nil
}

// keep compares an entry with its expected inode.
func keep(want metadata.Ino, old entry) error {
	switch {
	case old.ino == want:
		return nil
	case want == 0:
		return syscall.EEXIST
	}
	return syscall.ESTALE
}

// replace removes the old inode of an EditReplace or EditSwap from its entry.
func (a *applied) replace(e *edit, d *inode, old entry) error {
	if old.ino == 0 {
		if e.Kind == metadata.EditSwap {
			return syscall.ENOENT
		}
		return nil
	}
	was := &metadata.Entry{Name: e.Name, Ino: old.ino, Mode: old.mode}
	a.vote.Old = was
	if old.ino == e.Ino {
		return nil
	}
	if e.Kind == metadata.EditReplace {
		if err := replaceable(old.mode, e.Mode); err != nil {
			return err
		}
		if old.ino == e.ToDir {
			return syscall.ENOTEMPTY
		}
	}
	if !a.s.here(old.ino) {
		return nil
	}
	n, err := a.inode(old.ino)
	if e.Kind == metadata.EditSwap && a.gone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	was.Attr = &n.Attr
	return a.replaceInode(e, n)
}

func (a *applied) replaceInode(e *edit, n *inode) error {
	defer a.asOf(e.at, n)()
	if e.Kind == metadata.EditSwap {
		return a.editMoved(n, e.ToDir, e.ToName)
	}
	a.locks = append(a.locks, lockInode(n.Ino))
	if n.isDir() {
		return a.dropDir(n)
	}
	return a.relink(n, -1)
}

// replaceable reports whether an entry with the type of mode may replace one with the type of old.
func replaceable(old, mode uint32) error {
	switch {
	case isDir(old) && !isDir(mode):
		return syscall.EISDIR
	case !isDir(old) && isDir(mode):
		return syscall.ENOTDIR
	}
	return nil
}

func (a *applied) editInode(e *edit) error {
	n, err := a.inode(e.Ino)
	if e.Kind == metadata.EditMoved && a.gone(err) {
		return nil
	}
	if err != nil {
		a.locks = append(a.locks, lockInode(e.Ino)) // a transaction may be about to create the inode
		return err
	}
	defer a.asOf(e.at, n)()
	switch e.Kind {
	case metadata.EditMoved:
		return a.editMoved(n, e.ToDir, e.ToName)
	case metadata.EditDrop:
		if !n.isDir() {
			return fmt.Errorf("inode %v: %w", e.Ino, syscall.ENOTDIR)
		}
		a.locks = append(a.locks, lockInode(e.Ino))
		return a.dropDir(n)
	}
	delta := 1
	if e.Kind == metadata.EditUnlink {
		delta = -1
	}
	a.locks = append(a.locks, lockInode(e.Ino))
	a.vote.Attr = &n.Attr
	return a.relink(n, delta)
}

// gone reports whether err means that a moved file was already removed. No lock protects the file: its removal under
// the new name may precede this commit, because the home of that name learned of the commit first.
func (a *applied) gone(err error) bool { return a.again && errors.Is(err, syscall.ENOENT) }

// editMoved sets the new parent of n. It locks directories, so that Ancestor waits for the move; files do not record
// their parents.
func (a *applied) editMoved(n *inode, dir metadata.Ino, name string) error {
	if n.isDir() {
		a.locks = append(a.locks, lockInode(n.Ino))
	}
	return a.moved(n.Ino, dir, name)
}

// makeDir creates the directory of an EditMake. Its coordinator has set the inherited attributes in New.
func (a *applied) makeDir(e *edit) error {
	n := *e.New
	if err := checkDir(&n); err != nil {
		return err
	}
	if e.Ino == 0 {
		if err := a.s.room(); err != nil {
			return err
		}
		var err error
		if e.Ino, err = a.s.newIno(); err != nil {
			return err
		}
	}
	a.locks = append(a.locks, lockInode(e.Ino))
	c := &inode{Attr: metadata.Attr{Ino: e.Ino}}
	defer a.asOf(e.at, c)()
	*c = *a.fresh(e.Ino, n)
	c.parent, c.text = e.ToDir, e.ToName
	a.put(c)
	a.vote.Attr = &c.Attr
	return nil
}

// asOf sets the clock of the step to at, the time in the vote, until the returned function is called. It keeps changes
// of n since then: the clock is never before n.Ctime.
func (a *applied) asOf(at metadata.Time, n *inode) func() {
	now := a.now
	a.now = max(at, n.Ctime)
	return func() { a.now = now }
}

// dryRun applies edits and discards the result. On error it returns the locks found so far.
func (s *transactions) dryRun(edits []edit, again bool) (metadata.Vote, []txLock, error) {
	t := s.step()
	defer t.close()
	t.dry = true
	v, wants, err := t.apply(edits, again)
	if err == nil && t.err != nil {
		err = ioError("metadata store", t.err)
	}
	return v, wants, err
}
