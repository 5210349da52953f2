package txn

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Rename implements metadata.Namespace.
func (c *Coordinator) Rename(ctx context.Context, r metadata.Rename) (*metadata.Entry, error) {
	replaced, err := c.store.Rename(ctx, r)
	if localOnly(err) {
		return replaced, err
	}
	m := mover{c: c, r: r, exchange: r.Flags == metadata.RenameExchange}
	err = c.run(ctx, m.attempt)
	if err != nil {
		return nil, err
	}
	return m.replaced, nil
}

// mover is a rename over all its attempts. This home has the old name, and the home to has the new one.
type mover struct {
	c        *Coordinator
	r        metadata.Rename
	exchange bool
	to       metadata.NodeID
	epoch    metadata.Epoch // of the split of the new directory, if known
	down     metadata.Ino   // directory that an exchange moves down to r.Dir, which needs the rename lock

	// state of one attempt
	src      metadata.Entry
	rest     map[metadata.NodeID][]metadata.Edit // edits for other homes
	replaced *metadata.Entry
}

// attempt is one attempt.
func (m *mover) attempt(ctx context.Context, a *attempt) error {
	m.rest, m.replaced = make(map[metadata.NodeID][]metadata.Edit), nil
	var err error
	if m.src, err = m.c.store.Lookup(ctx, m.r.Dir, m.r.Name); err != nil {
		return err
	}
	if m.to, err = m.c.cfg.EntryHome(m.r.NewDir, m.r.NewName, m.epoch); err != nil {
		return err
	}
	if err := m.checkLoops(ctx, a); err != nil {
		return m.learn(err)
	}
	if m.exchange {
		err = m.swap(ctx, a)
	} else {
		err = m.move(ctx, a)
	}
	if err != nil {
		return m.learn(err)
	}
	return m.finish(ctx, a)
}

// learn records the location of the new directory's entries; a redirect is then no error.
func (m *mover) learn(err error) error {
	var e *metadata.Redirect
	if !errors.As(err, &e) || e.Dir != m.r.NewDir {
		return err
	}
	m.epoch = e.Epoch
	return fmt.Errorf("%v: %w", err, syscall.EAGAIN)
}

// checkLoops takes the rename lock if a directory gets another parent, and checks that the new parent is not below the
// directory.
func (m *mover) checkLoops(ctx context.Context, a *attempt) error {
	up := isDir(m.src.Mode)
	if m.r.Dir == m.r.NewDir || !up && m.down == 0 {
		return nil
	}
	if err := a.lock(ctx); err != nil {
		return err
	}
	loop := false
	var err error
	if up {
		loop, err = m.c.isBelow(ctx, m.r.NewDir, m.src.Ino)
	}
	if err == nil && !loop && m.down != 0 {
		loop, err = m.c.isBelow(ctx, m.r.Dir, m.down)
	}
	if err == nil && loop {
		err = m.refuse(ctx, a)
	}
	return err
}

// refuse returns the errno for moving a directory below itself: errors of its new name take precedence.
func (m *mover) refuse(ctx context.Context, a *attempt) error {
	edit := metadata.Edit{Kind: metadata.EditReplace, Dir: m.r.NewDir, Name: m.r.NewName, Ino: m.src.Ino, Mode: m.src.Mode}
	switch {
	case m.exchange:
		edit.Kind = metadata.EditSwap
	case m.r.Flags == metadata.RenameNoReplace:
		edit.Kind = metadata.EditEnter
	}
	v, err := a.part(ctx, m.to, edit)
	if err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	if v.Old != nil && v.Old.Ino == m.src.Ino {
		return errNothing
	}
	return fmt.Errorf("move of a directory below itself: %w", syscall.EINVAL)
}

// move removes the old name and enters the new one.
func (m *mover) move(ctx context.Context, a *attempt) error {
	self := m.c.cfg.Self
	leave := metadata.Edit{Kind: metadata.EditLeave, Dir: m.r.Dir, Name: m.r.Name, Ino: m.src.Ino}
	enter := metadata.Edit{Kind: metadata.EditReplace, Dir: m.r.NewDir, Name: m.r.NewName, Ino: m.src.Ino, Mode: m.src.Mode, ToDir: m.r.Dir}
	if m.r.Flags == metadata.RenameNoReplace {
		enter.Kind = metadata.EditEnter
	}
	m.later(m.src, m.r.NewDir, m.r.NewName)
	own := append([]metadata.Edit{leave}, m.now(self)...)
	if m.to == self {
		own = append(own, enter)
	}
	v, err := a.part(ctx, self, own...)
	if err == nil && m.to != self {
		v, err = a.part(ctx, m.to, append([]metadata.Edit{enter}, m.now(m.to)...)...)
	}
	if err != nil {
		return err
	}
	return m.displace(v.Old)
}

// displace removes a link of the inode that the new name referred to.
func (m *mover) displace(old *metadata.Entry) error {
	switch {
	case old == nil:
		return nil
	case old.Ino == m.src.Ino: // two names of one inode
		return errNothing
	}
	m.replaced = old
	if old.Attr != nil { // the home of the name has done it
		return nil
	}
	kind := metadata.EditUnlink
	if isDir(old.Mode) {
		kind = metadata.EditDrop
	}
	m.add(old.Ino.Home(), metadata.Edit{Kind: kind, Ino: old.Ino})
	return nil
}

// swap exchanges both names.
func (m *mover) swap(ctx context.Context, a *attempt) error {
	self := m.c.cfg.Self
	m.later(m.src, m.r.NewDir, m.r.NewName)
	there := metadata.Edit{Kind: metadata.EditSwap, Dir: m.r.NewDir, Name: m.r.NewName, Ino: m.src.Ino, Mode: m.src.Mode, ToDir: m.r.Dir, ToName: m.r.Name}
	keep := metadata.Edit{Kind: metadata.EditKeep, Dir: m.r.Dir, Name: m.r.Name, Ino: m.src.Ino}
	own := append([]metadata.Edit{keep}, m.now(self)...)
	if m.to == self {
		own = append(own, there)
	}
	v, err := a.part(ctx, self, own...)
	if err == nil && m.to != self {
		v, err = a.part(ctx, m.to, append([]metadata.Edit{there}, m.now(m.to)...)...)
	}
	if err != nil {
		return err
	}
	dst := v.Old
	switch {
	case dst == nil:
		return fmt.Errorf("vote of home %d has no entry: %w", m.to, syscall.EPROTO)
	case dst.Ino == m.src.Ino:
		return errNothing
	case isDir(dst.Mode) && m.r.Dir != m.r.NewDir && m.down != dst.Ino:
		m.down = dst.Ino
		return fmt.Errorf("path above %v must be checked for a loop: %w", m.r.Dir, syscall.EAGAIN)
	}
	if dst.Attr == nil {
		m.later(*dst, m.r.Dir, m.r.Name)
	}
	m.add(self, metadata.Edit{Kind: metadata.EditSwap, Dir: m.r.Dir, Name: m.r.Name, Ino: dst.Ino, Mode: dst.Mode, ToDir: m.r.NewDir, ToName: m.r.NewName})
	return nil
}

// later adds the new name of e to the edits of its home. It skips a file, whose ctime alone would change, if its home
// is down.
func (m *mover) later(e metadata.Entry, dir metadata.Ino, name string) {
	if home := e.Ino.Home(); isDir(e.Mode) || !m.c.cfg.Down(home) {
		m.add(home, metadata.Edit{Kind: metadata.EditMoved, Ino: e.Ino, ToDir: dir, ToName: name})
	}
}

func (m *mover) add(home metadata.NodeID, e metadata.Edit) { m.rest[home] = append(m.rest[home], e) }

// now removes and returns the edits of home, to be prepared in one call.
func (m *mover) now(home metadata.NodeID) []metadata.Edit {
	edits := m.rest[home]
	delete(m.rest, home)
	return edits
}

// finish prepares all remaining edits.
func (m *mover) finish(ctx context.Context, a *attempt) error {
	homes := make([]metadata.NodeID, 0, len(m.rest))
	for home := range m.rest {
		homes = append(homes, home)
	}
	votes, err := a.parts(ctx, homes, m.rest)
	if err != nil {
		return err
	}
	for _, v := range votes {
		if m.replaced != nil && v.Attr != nil && v.Attr.Ino == m.replaced.Ino {
			m.replaced.Mode, m.replaced.Attr = v.Attr.Mode, v.Attr
		}
	}
	return nil
}
