package pebblestore

import (
	"cmp"
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

// Config configures a Store. Dir is required; the zero values of the rest are the defaults.
type Config struct {
	Dir       string           // directory of the store; created if missing
	FS        vfs.FS           // nil is the disk
	Self      metadata.NodeID  // the node that owns the records
	UID       uint32           // owner of the live root, which is on node 0
	GID       uint32           // group of the live root
	RootMode  uint32           // permissions of the live root; 0 is 0700
	Now       func() time.Time // clock of all inode times; nil is time.Now
	Log       *logrus.Entry    // nil discards
	Sync      bool             // every operation waits for the disk
	CacheSize int64            // bytes of blocks kept in memory; 0 is 64 MiB
	ShardAt   int              // number of entries at which a directory is split; 0 is never
	// Orphaned is called after the commit with each file that has lost its last link. It must not block or call the
	// store. It may be nil.
	Orphaned func(ino metadata.Ino, size int64)
	// Named is called with each orphan that was linked to a name, under the same rules as Orphaned.
	Named func(ino metadata.Ino)
	// Room reports whether records may be added; if not, adding fails with ENOSPC, while removals still succeed. nil
	// means that there is always room.
	Room func() bool
}

const (
	defaultCacheSize = 64 << 20
	memTableSize     = 16 << 20
)

// Memory bounds the memory of a store with the default cache: the cache, and two memtables.
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
	c.RootMode = cmp.Or(c.RootMode, 0o700)
	if c.Now == nil {
		c.Now = time.Now
	}
	c.CacheSize = cmp.Or(c.CacheSize, defaultCacheSize)
	if c.Orphaned == nil {
		c.Orphaned = func(metadata.Ino, int64) {}
	}
	if c.Named == nil {
		c.Named = func(metadata.Ino) {}
	}
	c.Log = cmp.Or(c.Log, logrus.NewEntry(&logrus.Logger{Out: io.Discard}))
	return nil
}

// Store is one node's metadata.Store for operations on this node alone, and a metadata.Participant in others. It is
// safe for concurrent use.
//
//	Store          names, inodes, attributes, inventory
//	  shards       the parts of large directories
//	  transactions operations in which other homes take part
//	    core       the database, one atomic step, locks, counters
type Store struct {
	*core
	shards
	transactions
}

// shards serves the shards of large directories.
type shards struct{ *core }

// transactions is this home's part, as coordinator or participant, in operations that involve several homes.
type transactions struct{ *core }

// core is the database and the state that every operation needs.
type core struct {
	cfg   Config
	db    *pebble.DB
	wal   *walFS
	fresh bool // created by Open

	mirrorMu sync.RWMutex
	mirror   Mirror // under mirrorMu

	closeMu sync.RWMutex
	closed  bool // under closeMu

	locks   locks
	txLocks txLocks
	counter counter
	sharded shardedDirs
	tables  tableFiles
}

var _ metadata.Store = (*Store)(nil)

// Open opens the store in cfg.Dir, and creates it if there is none. It returns EINVAL for the store of another node.
func Open(cfg Config) (*Store, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	c := &core{cfg: cfg, wal: newWALFS(cfg.FS, cfg.Sync)}
	s := &Store{core: c, shards: shards{c}, transactions: transactions{c}}
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

// options returns the options of the Pebble store. The format is pinned below FormatWALSyncChunks: with that format the
// log would record syncs that walFS skips, so after a power loss the store would look corrupt.
func (s *core) options() *pebble.Options {
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

// prepare checks that the store belongs to this node and creates the live root of a new one.
func (s *Store) prepare() error {
	if err := s.tables.clean(s.core); err != nil {
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
		return fmt.Errorf("metadata store %s belongs to node %x, not to node %d: %w", s.cfg.Dir, self, s.cfg.Self, syscall.EINVAL)
	}
	if err := s.loadSharded(); err != nil {
		return err
	}
	if err := s.counter.load(s.core); err != nil {
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
	return s.counter.load(s.core)
}

// Fresh reports whether Open has created the store.
func (s *core) Fresh() bool { return s.fresh }

// Sync makes all acknowledged operations durable on the disk.
func (s *core) Sync(_ context.Context) error {
	if err := s.begin(); err != nil {
		return err
	}
	defer s.end()
	return ioError("sync of the metadata", s.wal.flush(s.db))
}

// Close waits for operations in progress and closes the store. Later operations get ESHUTDOWN.
func (s *core) Close() error {
	s.closeMu.Lock()
	defer s.closeMu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return ioError("close of the metadata", s.db.Close())
}

// begin starts every exported operation, and end ends it.
func (s *core) begin() error {
	s.closeMu.RLock()
	if s.closed {
		s.closeMu.RUnlock()
		return fmt.Errorf("metadata store is closed: %w", syscall.ESHUTDOWN)
	}
	return nil
}

func (s *core) end() { s.closeMu.RUnlock() }

func (s *core) now() metadata.Time { return metadata.TimeOf(s.cfg.Now()) }

// room returns ENOSPC if no record may be added.
func (s *core) room() error {
	if s.cfg.Room == nil || s.cfg.Room() {
		return nil
	}
	return fmt.Errorf("metadata store: its disk is full: %w", syscall.ENOSPC)
}

// here reports whether this store has the record of ino.
func (s *core) here(ino metadata.Ino) bool {
	return !ino.Sealed() && ino.Home() == s.cfg.Self
}

// ioError adds an errno to an error of Pebble.
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

// logger passes on the messages of Pebble. Pebble calls Fatalf when it could not write its log and cannot continue.
type logger struct{ log *logrus.Entry }

func (l logger) Infof(format string, args ...any)  { l.log.Debugf(format, args...) }
func (l logger) Errorf(format string, args ...any) { l.log.Errorf(format, args...) }
func (l logger) Fatalf(format string, args ...any) { l.log.Fatalf(format, args...) }
