package pebblestore

import (
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// walFS makes a commit wait for the write of the log, but not for the disk.
// Pebble itself knows only two kinds of commit: one that waits for the disk,
// and one that leaves up to 32 KiB of acknowledged operations in the daemon's
// own memory, which are lost if it is killed.
type walFS struct {
	vfs.FS
	always  bool         // sync when Pebble says so
	flushes atomic.Int32 // explicit flushes under way
}

func newWALFS(fs vfs.FS, always bool) *walFS { return &walFS{FS: fs, always: always} }

// flush makes everything that was committed to db durable.
func (f *walFS) flush(db *pebble.DB) error {
	f.flushes.Add(1)
	defer f.flushes.Add(-1)
	return db.LogData(nil, pebble.Sync)
}

func (f *walFS) lazy() bool { return !f.always && f.flushes.Load() == 0 }

// Unwrap returns the file system below.
func (f *walFS) Unwrap() vfs.FS { return f.FS }

// Create opens a new file, lazily synced if it is a log.
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

// walFile is a log. What it skipped is made good by the next flush, or when
// the log is closed, so that a flush never has to look at older logs.
type walFile struct {
	vfs.File
	fs *walFS
}

// Sync waits for the disk if a flush is under way.
func (f *walFile) Sync() error {
	if f.fs.lazy() {
		return nil
	}
	return f.File.Sync()
}

// SyncData waits for the disk if a flush is under way.
func (f *walFile) SyncData() error {
	if f.fs.lazy() {
		return nil
	}
	return f.File.SyncData()
}

// Close makes the whole log durable.
func (f *walFile) Close() error {
	err := f.File.Sync()
	if e := f.File.Close(); err == nil {
		err = e
	}
	return err
}
