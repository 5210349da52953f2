package pebblestore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// Config says where the store is and what its root looks like. Dir is
// required; every other zero value is its default.
type Config struct {
	Dir       string           // directory of the store; made if it is not there
	FS        vfs.FS           // nil is the disk
	Self      metadata.NodeID  // the node whose records these are
	UID       uint32           // owner of the live root, which node 0 has
	GID       uint32           // group of the live root
	RootMode  uint32           // permissions of the live root; 0 is 0700
	Now       func() time.Time // clock of all inode times; nil is time.Now
	Log       *logrus.Entry    // nil is silence
	Sync      bool             // every operation waits for the disk
	CacheSize int64            // bytes of blocks kept in memory; 0 is 64 MiB
	ShardAt   int              // entries from which FullDirs names a directory; 0 is never
	// Unnamed is told each file that has lost its last name, when that is
	// committed. It must not wait, nor call the store. nil is nobody.
	Orphaned func(metadata.Ino)
	// Room reports whether there is room for more: without it what adds a
	// record is ENOSPC, and what removes one goes on. nil is always.
	Room func() bool
}

const (
	defaultCacheSize = 64 << 20
	memTableSize     = 16 << 20
)

// Memory is the most that a store with the default cache keeps of its records:
// the cache, and two tables of what was written last.
const Memory = defaultCacheSize + 2*memTableSize

func (c *Config) setDefaults() error {
	if c.Dir == "" {
		return fmt.Errorf("metadata store: no directory: %w", syscall.EINVAL)
	}
	if c.Self >= metadata.MaxNodes {
		return fmt.Errorf("metadata store: node %d: %w", c.Self, syscall.EINVAL)
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if c.RootMode == 0 {
		c.RootMode = 0o700
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.CacheSize == 0 {
		c.CacheSize = defaultCacheSize
	}
	if c.Orphaned == nil {
		c.Orphaned = func(metadata.Ino) {}
	}
	if c.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		c.Log = logrus.NewEntry(l)
	}
	return nil
}

// Store is one node's metadata.Store, of what concerns no other node, and a
// metadata.Participant in what does. Its methods may be called at once
// from any number of goroutines.
type Store struct {
	cfg   Config
	db    *pebble.DB
	wal   *walFS
	fresh bool // Open has made it

	closeMu sync.RWMutex
	closed  bool // under closeMu

	locks   locks
	txLocks txLocks
	counter counter
	sharded shardedDirs
	tables  tableFiles
}

var _ metadata.Store = (*Store)(nil)

// Open opens the store in cfg.Dir and makes it if there is none. A store that
// belongs to another node is EINVAL.
func Open(cfg Config) (*Store, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, wal: newWALFS(cfg.FS, cfg.Sync)}
	s.sharded.init()
	s.txLocks.init()
	if err := cfg.FS.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("metadata store: %w", err)
	}
	db, err := pebble.Open(cfg.Dir, s.options())
	if err != nil {
		return nil, fmt.Errorf("metadata store: %w", err)
	}
	s.db = db
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// options are those of the Pebble store. The format is pinned: to what is on
// the disk, and below FormatWALSyncChunks, with which the log would state that
// it was synced where walFS did not, so that a store that lost power would be
// taken for a corrupt one.
func (s *Store) options() *pebble.Options {
	o := &pebble.Options{
		FS:                 s.wal,
		CacheSize:          s.cfg.CacheSize,
		MemTableSize:       memTableSize,
		FormatMajorVersion: pebble.FormatColumnarBlocks,
		Logger:             logger{s.cfg.Log},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return o
}

// prepare checks whose store it is and, in a new one, makes the live root.
func (s *Store) prepare() error {
	if err := s.tables.clean(s); err != nil {
		return err
	}
	v, err := s.get(keyVersion)
	if errors.Is(err, syscall.ENOENT) {
		s.fresh = true
		return s.create()
	}
	if err != nil {
		return err
	}
	if len(v) != 1 || v[0] != schemaVersion {
		return fmt.Errorf("metadata store %s: schema %x, want %d: %w", s.cfg.Dir, v, schemaVersion, syscall.EINVAL)
	}
	self, err := s.get(keySelf)
	if err != nil {
		return err
	}
	if len(self) != 2 || metadata.NodeID(binary.BigEndian.Uint16(self)) != s.cfg.Self {
		return fmt.Errorf("metadata store %s is that of node %x, not of node %d: %w", s.cfg.Dir, self, s.cfg.Self, syscall.EINVAL)
	}
	if err := s.loadSharded(); err != nil {
		return err
	}
	if err := s.counter.load(s); err != nil {
		return err
	}
	return s.loadIntents()
}

func (s *Store) create() error {
	b := s.db.NewBatch()
	defer b.Close()
	err := errors.Join(
		b.Set(keyVersion, []byte{schemaVersion}, nil),
		b.Set(keySelf, binary.BigEndian.AppendUint16(nil, uint16(s.cfg.Self)), nil))
	if s.cfg.Self == metadata.RootIno.Home() {
		t := s.now()
		root := inode{Attr: metadata.Attr{
			Ino: metadata.RootIno, Mode: syscall.S_IFDIR | s.cfg.RootMode&0o7777, Nlink: 2,
			UID: s.cfg.UID, GID: s.cfg.GID, Atime: t, Mtime: t, Ctime: t,
		}}
		err = errors.Join(err, b.Set(inodeKey(metadata.RootIno), root.append(nil), nil))
	}
	if err == nil {
		err = s.commit(b)
	}
	if err == nil {
		err = s.wal.flush(s.db)
	}
	if err != nil {
		return ioError("new metadata store", err)
	}
	return s.counter.load(s)
}

// Fresh reports whether Open has made the store: nobody can know of anything in
// it from before.
func (s *Store) Fresh() bool { return s.fresh }

// Sync makes all operations that were acknowledged durable on the disk.
func (s *Store) Sync(_ context.Context) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	return ioError("sync of the metadata", s.wal.flush(s.db))
}

// Close waits for the operations in flight and closes the store. What comes
// after it is ESHUTDOWN.
func (s *Store) Close() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return ioError("close of the metadata", s.db.Close())
}

// begin must stand at the start of every exported operation, and end at its end.
func (s *Store) begin() error {
	s.closeMu.RLock()
	if s.closed {
		s.closeMu.RUnlock()
		return fmt.Errorf("metadata store is closed: %w", syscall.ESHUTDOWN)
	}
	return nil
}

func (s *Store) end() { s.closeMu.RUnlock() }

func (s *Store) now() metadata.Time { return metadata.TimeOf(s.cfg.Now()) }

// room is ENOSPC where nothing can be added.
func (s *Store) room() error {
	if s.cfg.Room == nil || s.cfg.Room() {
		return nil
	}
	return fmt.Errorf("metadata store: its disk is full: %w", syscall.ENOSPC)
}

// here reports whether the record of ino is this store's.
func (s *Store) here(ino metadata.Ino) bool {
	return !ino.Sealed() && ino.Home() == s.cfg.Self
}

// ioError gives an error of Pebble its errno.
func ioError(what string, err error) error {
	if err == nil {
		return nil
	}
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS, syscall.EDQUOT} {
		if errors.Is(err, e) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	return fmt.Errorf("%s: %w: %w", what, syscall.EIO, err)
}

// logger hands Pebble's own messages on. Pebble calls Fatalf when it could not
// write its log, and cannot go on then.
type logger struct{ log *logrus.Entry }

func (l logger) Infof(format string, args ...any)  { l.log.Debugf(format, args...) }
func (l logger) Errorf(format string, args ...any) { l.log.Errorf(format, args...) }
func (l logger) Fatalf(format string, args ...any) { l.log.Fatalf(format, args...) }
