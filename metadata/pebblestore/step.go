package pebblestore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"

	"github.com/bivouacfs/bivouac/metadata"
)

// commitOptions makes a commit wait for the write of the log; see walFS.
var commitOptions = pebble.Sync

// commit applies a batch once this home's partner has it.
func (s *core) commit(b *pebble.Batch) error {
	s.mirrorMu.RLock()
	defer s.mirrorMu.RUnlock()
	if s.mirror != nil {
		done, err := s.mirror(b.Repr())
		if err != nil {
			return err
		}
		defer done()
	}
	return s.db.Apply(b, commitOptions)
}

// set commits one record.
func (s *core) set(key, value []byte) error {
	b := s.db.NewBatch()
	defer b.Close()
	if err := b.Set(key, value, nil); err != nil {
		return err
	}
	return s.commit(b)
}

// remove commits the removal of one record.
func (s *core) remove(key []byte) error {
	b := s.db.NewBatch()
	defer b.Close()
	if err := b.Delete(key, nil); err != nil {
		return err
	}
	return s.commit(b)
}

// get returns a copy of a value; ENOENT if there is none.
func (s *core) get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, syscall.ENOENT
	}
	if err != nil {
		return nil, ioError("metadata store", err)
	}
	defer closer.Close()
	return append(make([]byte, 0, len(v)), v...), nil
}

// reader reads records from the store or from a snapshot.
type reader struct{ r pebble.Reader }

func (s *core) inode(ino metadata.Ino) (inode, error) { return reader{s.db}.inode(ino) }

func (s *core) entry(dir metadata.Ino, name string) (entry, error) {
	return reader{s.db}.entry(dir, name)
}

func (s *core) empty(dir metadata.Ino) (bool, error) { return reader{s.db}.empty(dir) }

// scan calls fn with the records of r in [lower, upper), in order, until fn returns false or an error. A record is
// valid until fn returns. what names the records in errors.
func scan(r pebble.Reader, what string, lower, upper []byte, fn func(k, v []byte) (more bool, err error)) error {
	it, err := r.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return ioError(what, err)
	}
	more := true
	for ok := it.First(); ok && more && err == nil; ok = it.Next() {
		more, err = fn(it.Key(), it.Value())
	}
	return errors.Join(err, ioError(what, it.Close()))
}

// scanInos is scan for all records under a prefix whose keys are inode numbers, or transactions, which are numbered
// likewise.
func scanInos(r pebble.Reader, what string, prefix byte, fn func(ino metadata.Ino, v []byte) error) error {
	return scan(r, what, []byte{prefix}, []byte{prefix + 1}, func(k, v []byte) (bool, error) {
		if len(k) != 9 {
			return false, fmt.Errorf("%s: key %x: %w", what, k, syscall.EIO)
		}
		return true, fn(metadata.Ino(binary.BigEndian.Uint64(k[1:])), v)
	})
}

// inode reads an inode; ENOENT if there is none.
func (r reader) inode(ino metadata.Ino) (inode, error) {
	v, closer, err := r.r.Get(inodeKey(ino))
	if errors.Is(err, pebble.ErrNotFound) {
		return inode{}, fmt.Errorf("inode %v: %w", ino, syscall.ENOENT)
	}
	if err != nil {
		return inode{}, ioError("metadata store", err)
	}
	defer closer.Close()
	return parseInode(ino, v)
}

// entry reads an entry; the zero entry if there is none.
func (r reader) entry(dir metadata.Ino, name string) (entry, error) {
	v, closer, err := r.r.Get(entryKey(dir, name))
	if errors.Is(err, pebble.ErrNotFound) {
		return entry{}, nil
	}
	if err != nil {
		return entry{}, ioError("metadata store", err)
	}
	defer closer.Close()
	e, err := parseEntry(v)
	if err != nil {
		return entry{}, fmt.Errorf("record of entry %q in %v: %w", name, dir, err)
	}
	return e, nil
}

// empty reports whether dir has no entries.
func (r reader) empty(dir metadata.Ino) (bool, error) {
	it, err := r.r.NewIter(&pebble.IterOptions{LowerBound: entryKey(dir, ""), UpperBound: entriesEnd(dir)})
	if err != nil {
		return false, ioError("metadata store", err)
	}
	found := it.First()
	return !found, ioError("metadata store", it.Close())
}

// checkName validates the name of an entry.
func checkName(name string) error {
	switch {
	case len(name) > metadata.MaxName:
		return fmt.Errorf("name of %d bytes %.32q...: %w", len(name), name, syscall.ENAMETOOLONG)
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return fmt.Errorf("name %q: %w", name, syscall.EINVAL)
	}
	return nil
}

// named adds directory and name to an error.
func named(dir metadata.Ino, name string, errno error) error {
	return &nameError{dir, name, errno}
}

// nameError is an error with its entry. Its text is formatted on demand, because every create first gets ENOENT for its
// name.
type nameError struct {
	dir  metadata.Ino
	name string
	err  error
}

// Error implements error.
func (e *nameError) Error() string { return fmt.Sprintf("%q in %v: %v", e.name, e.dir, e.err) }

// Unwrap returns the errno.
func (e *nameError) Unwrap() error { return e.err }

// step is one atomic change: the inodes it has read, each once, and the batch of its writes. Its owner holds the locks
// of the inodes.
type step struct {
	s        *core
	b        *pebble.Batch
	now      metadata.Time
	inodes   []*inode
	orphaned []metadata.Attr // files that have lost their last link
	named    []metadata.Ino  // orphans that have got a link
	dry      bool            // not to be committed
	err      error           // the first error of the batch
}

func (s *core) step() *step {
	return &step{s: s, b: s.db.NewBatch(), now: s.now(), inodes: make([]*inode, 0, 4)}
}

func (t *step) close() { _ = t.b.Close() } // frees memory only

// inode reads an inode that the step may change.
func (t *step) inode(ino metadata.Ino) (*inode, error) {
	for _, n := range t.inodes {
		if n.Ino == ino {
			return n, nil
		}
	}
	n, err := t.s.inode(ino)
	if err != nil {
		return nil, err
	}
	t.inodes = append(t.inodes, &n)
	return &n, nil
}

// dir is inode for a directory. For a directory with another home it returns the shard's copy.
func (t *step) dir(ino metadata.Ino) (*inode, error) {
	if !t.s.here(ino) {
		return t.shardInode(ino)
	}
	n, err := t.inode(ino)
	if err != nil {
		return nil, err
	}
	if !n.isDir() {
		return nil, fmt.Errorf("inode %v: %w", ino, syscall.ENOTDIR)
	}
	return n, nil
}

// shardInode returns the attributes of a directory with another home: those that new entries inherit, and the links and
// times that this shard counts.
func (t *step) shardInode(dir metadata.Ino) (*inode, error) {
	for _, n := range t.inodes {
		if n.Ino == dir {
			return n, nil
		}
	}
	v, err := t.s.get(inoKey(prefixShardInode, dir))
	if errors.Is(err, syscall.ENOENT) {
		return nil, &metadata.Redirect{Dir: dir}
	}
	if err != nil {
		return nil, err
	}
	n, err := parseInode(dir, v)
	if err != nil {
		return nil, err
	}
	t.inodes = append(t.inodes, &n)
	return &n, nil
}

// dirOf returns the directory ino for a change of its entry name.
func (t *step) dirOf(ino metadata.Ino, name string) (*inode, error) {
	if err := t.s.checkWritable(ino, name); err != nil {
		return nil, err
	}
	return t.dir(ino)
}

func (t *step) note(err error) {
	if t.err == nil {
		t.err = err
	}
}

func (t *step) put(n *inode) {
	t.note(t.b.Set(t.s.dirKey(n.Ino), n.append(make([]byte, 0, 96)), nil))
}

// putShardMap writes the record of a sharded directory.
func (t *step) putShardMap(dir metadata.Ino, d *shardedDir) {
	t.note(t.b.Set(shardKey(dir), d.append(nil), nil))
}

// enter adds an entry and updates its directory in memory; the caller writes the directory.
func (t *step) enter(dir *inode, name string, e entry) {
	t.note(t.b.Set(entryKey(dir.Ino, name), e.append(make([]byte, 0, 12)), nil))
	t.count(dir.Ino, name, 1)
	t.entriesChanged(dir)
}

// entriesChanged sets the times of dir. They never go back, even if the clock does: clients that have made a change
// here identify the state of dir by its latest time.
func (t *step) entriesChanged(dir *inode) {
	t.changed(dir)
	dir.Mtime = dir.Ctime
}

// count counts a created or removed entry.
func (t *step) count(dir metadata.Ino, name string, delta int) {
	if !t.dry {
		t.s.count(dir, name, delta)
	}
}

// leave removes an entry and updates its directory in memory; the caller writes the directory.
func (t *step) leave(dir *inode, name string) {
	t.note(t.b.Delete(entryKey(dir.Ino, name), nil))
	t.count(dir.Ino, name, -1)
	t.entriesChanged(dir)
}

// unlink removes a link of a file and writes it.
func (t *step) unlink(n *inode) {
	if n.Nlink > 0 {
		n.Nlink--
	}
	t.changed(n)
	if n.Nlink == 0 {
		t.orphan(n)
	}
	t.put(n)
}

// orphan records that a file has no links.
func (t *step) orphan(n *inode) {
	t.note(t.b.Set(orphanKey(n.Ino), nil, nil))
	t.orphaned = append(t.orphaned, n.Attr)
}

// drop removes the inode of an empty directory.
func (t *step) drop(n *inode) {
	n.Nlink, n.Ctime = 0, t.now
	t.forget(n)
}

// forget removes an inode and its attributes.
func (t *step) forget(n *inode) {
	t.note(t.b.Delete(inodeKey(n.Ino), nil))
	if n.xattrs > 0 {
		t.note(t.b.DeleteRange(xattrKey(n.Ino, ""), xattrsEnd(n.Ino), nil))
	}
}

// commit applies the step. A shard whose entries have changed will report.
func (t *step) commit() error {
	if err := t.commitQuiet(); err != nil {
		return err
	}
	for _, n := range t.inodes {
		if !t.s.here(n.Ino) {
			t.s.MarkChanged(n.Ino)
		}
	}
	return nil
}

func (t *step) commitQuiet() error {
	if t.err != nil {
		return ioError("metadata store", t.err)
	}
	if err := t.s.commit(t.b); err != nil {
		return ioError("metadata store", err)
	}
	for i := range t.orphaned {
		t.s.cfg.Orphaned(t.orphaned[i].Ino, t.orphaned[i].Size)
	}
	for _, ino := range t.named {
		t.s.cfg.Named(ino)
	}
	return nil
}
