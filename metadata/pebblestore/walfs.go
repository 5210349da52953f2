package pebblestore

import (
	"errors"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// walFS makes a commit wait for the write of the log, but not for the disk. Pebble itself has only two kinds of commit:
// one waits for the disk, the other leaves up to 32 KiB of acknowledged operations in the daemon's memory, which are
// lost if the daemon is killed.
type walFS struct {
	vfs.FS
	always  bool         // sync on request of Pebble
	flushes atomic.Int32 // explicit flushes in progress
}

func newWALFS(fs vfs.FS, always bool) *walFS { return &walFS{FS: fs, always: always} }

// flush makes all commits to db durable.
func (f *walFS) flush(db *pebble.DB) error {
	f.flushes.Add(1)
	defer f.flushes.Add(-1)
	return db.LogData(nil, pebble.Sync)
}

func (f *walFS) lazy() bool { return !f.always && f.flushes.Load() == 0 }

// Unwrap returns the file system below.
func (f *walFS) Unwrap() vfs.FS { return f.FS }

// Create creates a file; if it is a log, its syncs are lazy.
func (f *walFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.Create(name, c)
	return f.wrap(name, file, err)
}

// ReuseForWrite is Create over an old log.
func (f *walFS) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := f.FS.ReuseForWrite(old, name, c)
	return f.wrap(name, file, err)
}

func (f *walFS) wrap(name string, file vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return file, err
	}
	return &walFile{File: file, fs: f}, nil
}

// walFile is a log. The next flush, or its Close, catches up on skipped syncs, so that a flush never has to sync older
// logs.
type walFile struct {
	vfs.File
	fs *walFS
}

// Sync waits for the disk during a flush.
func (f *walFile) Sync() error {
	if f.fs.lazy() {
		return nil
	}
	return f.File.Sync()
}

// SyncData waits for the disk during a flush.
func (f *walFile) SyncData() error {
	if f.fs.lazy() {
		return nil
	}
	return f.File.SyncData()
}

// Close makes the whole log durable.
func (f *walFile) Close() error {
	return errors.Join(f.File.Sync(), f.File.Close())
}
