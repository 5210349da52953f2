package pebblestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Referenced returns the inodes of home that entries here, or prepared edits, refer to, in the next limit records after
// the key after. next is the key to continue from; nil means the end.
func (s *Store) Referenced(ctx context.Context, home metadata.NodeID, after []byte, limit int) (inos []metadata.Ino, next []byte, err error) {
	if len(after) == 0 {
		after = []byte{prefixEntry}
	}
	add := func(ino metadata.Ino) {
		if ino != 0 && !ino.Sealed() && ino.Home() == home {
			inos = append(inos, ino)
		}
	}
	err = s.eachRecord(ctx, after, func(r Record) (bool, error) {
		switch {
		case r.Key[0] > prefixIntent:
			return false, nil
		case limit == 0:
			next = after
			return false, nil
		}
		limit--
		after = append(after[:0:0], r.Key...)
		return true, referencedBy(r, add)
	})
	return inos, next, err
}

// referencedBy calls add with the inodes that a record refers to, or may refer to.
func referencedBy(r Record, add func(metadata.Ino)) error {
	switch r.Key[0] {
	case prefixEntry:
		e, err := parseEntry(r.Value)
		if err != nil {
			return fmt.Errorf("entry %x: %w", r.Key, err)
		}
		add(e.ino)
	case prefixIntent:
		edits, _, err := parseIntent(r.Value)
		if err != nil {
			return err
		}
		for _, e := range edits {
			add(e.Ino)
			add(e.old)
		}
	}
	return nil
}

// orphanMayBeNamed is the value of an orphan that Link can give a name.
var orphanMayBeNamed = []byte{1}

// nameable reports whether ino is an orphan that may get a name.
func (s *core) nameable(ino metadata.Ino) (bool, error) {
	v, err := s.get(orphanKey(ino))
	if errors.Is(err, syscall.ENOENT) {
		return false, nil
	}
	return len(v) > 0, err
}

// CreateUnnamed creates a regular file that inherits from dir but has no name. It is an orphan, which Link can give a
// name until Doom is called.
func (s *Store) CreateUnnamed(ctx context.Context, dir metadata.Ino, n metadata.New) (metadata.Attr, error) {
	if err := checkFile(&n); err != nil {
		return metadata.Attr{}, err
	}
	var a metadata.Attr
	err := s.retry(ctx, func() error {
		defer s.locks.lock(dir).unlock()
		t := s.step()
		defer t.close()
		d, err := t.dirOf(dir, "")
		if err != nil {
			return err
		}
		c, err := t.make(d, n)
		if err != nil {
			return err
		}
		c.Nlink = 0
		t.orphan(c)
		t.note(t.b.Set(orphanKey(c.Ino), orphanMayBeNamed, nil))
		t.put(c)
		a = c.Attr
		return t.commitQuiet()
	})
	return a, err
}

// Doom returns the attributes of an inode whose data is to be removed if it is an orphan. Afterwards no orphan can get
// a name. It returns EAGAIN while a transaction that was given up may still have named the inode.
func (s *Store) Doom(ctx context.Context, ino metadata.Ino) (metadata.Attr, error) {
	var may bool
	err := s.once(func() (err error) {
		may, err = s.nameable(ino)
		return err
	})
	if err != nil || !may {
		return s.Getattr(ctx, ino)
	}
	var a metadata.Attr
	err = s.retry(ctx, func() (err error) {
		a, err = s.onInode(ino, func(t *step, n *inode) error {
			if n.Nlink == 0 {
				t.note(t.b.Set(orphanKey(ino), nil, nil))
			}
			if err := s.txLocks.checkFree(ino, ""); err != nil {
				return err
			}
			for _, p := range s.txLocks.all() {
				if p.mayName(ino) {
					return fmt.Errorf("inode %v: transaction %v is in doubt: %w", ino, p.tx, syscall.EAGAIN)
				}
			}
			return nil
		})
		return err
	})
	return a, err
}

// mayName reports whether p was given up and, if it turns out to be committed, gives ino a name. It does not wait for
// p.mu, which must be taken before stripes.
func (p *preparedTx) mayName(ino metadata.Ino) bool {
	if !p.gaveUp.Load() {
		return false
	}
	if !p.mu.TryLock() {
		return true
	}
	defer p.mu.Unlock()
	return !p.ended && slices.ContainsFunc(p.edits, func(e edit) bool { return e.Ino == ino })
}

// Links is the link count of an inode, and its ctime.
type Links struct {
	Count uint32
	Ctime metadata.Time
}

// OrphanCandidates returns at most limit inodes of this home that have links, are not locked by a transaction, and are
// not referenced according to named.
func (s *Store) OrphanCandidates(ctx context.Context, named func(metadata.Ino) bool, limit int) (map[metadata.Ino]Links, error) {
	return s.linked(ctx, limit, func(n inode) bool { return n.Nlink > 0 && n.Ino != metadata.RootIno && !named(n.Ino) })
}

// HardLinked returns at most limit files of this home that have several links and are not locked by a transaction.
func (s *Store) HardLinked(ctx context.Context, limit int) (map[metadata.Ino]Links, error) {
	return s.linked(ctx, limit, func(n inode) bool { return n.Nlink > 1 && !n.isDir() })
}

// linked returns at most limit inodes for which ok returns true.
func (s *Store) linked(ctx context.Context, limit int, ok func(inode) bool) (map[metadata.Ino]Links, error) {
	found := make(map[metadata.Ino]Links)
	err := s.eachRecord(ctx, []byte{prefixInode}, func(r Record) (bool, error) {
		if r.Key[0] != prefixInode || len(found) == limit {
			return false, nil
		}
		ino := metadata.Ino(binary.BigEndian.Uint64(r.Key[1:]))
		n, err := parseInode(ino, r.Value)
		if err == nil && ok(n) && !s.holds(ino) {
			found[ino] = Links{n.Nlink, n.Ctime}
		}
		return true, err
	})
	return found, err
}

// holds reports whether a transaction locks ino here.
func (s *Store) holds(ino metadata.Ino) bool {
	return s.txLocks.blockedBy(nil, []txLock{lockInode(ino)}) != nil
}

// LowerLinks lowers the link count of a file, which becomes an orphan at 0 links, or removes an unreferenced directory,
// unless the inode has changed since to.Ctime or a transaction locks it. It returns ENOTEMPTY for a directory with
// entries and EAGAIN for a changed inode.
func (s *Store) LowerLinks(ino metadata.Ino, to Links) error {
	return s.once(func() error {
		_, err := s.onInode(ino, func(t *step, n *inode) error {
			if n.Ctime != to.Ctime || n.Nlink <= to.Count || ino == metadata.RootIno || s.holds(ino) {
				return fmt.Errorf("inode %v has changed: %w", ino, syscall.EAGAIN)
			}
			if !n.isDir() {
				n.Nlink = to.Count
				t.changed(n)
				if n.Nlink == 0 {
					t.orphan(n)
				}
				t.put(n)
				return nil
			}
			d, g := s.sharded.get(ino)
			empty, err := s.empty(ino)
			if err == nil && (!empty || d != nil || g != nil) {
				err = fmt.Errorf("directory %v: %w", ino, syscall.ENOTEMPTY)
			}
			if err == nil {
				t.drop(n)
			}
			return err
		})
		return err
	})
}
