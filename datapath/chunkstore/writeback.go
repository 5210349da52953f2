package chunkstore

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/bivouacfs/bivouac/metadata"
)

// writeBacker is a File whose cached writes can be flushed by range.
type writeBacker interface {
	// StartWriteBack starts to flush [off, off+n) to the disk; AwaitWriteBack waits for that.
	// Neither makes anything durable.
	StartWriteBack(off, n int64) error
	AwaitWriteBack(off, n int64) error
}

var _ writeBacker = (*osFile)(nil)

// StartWriteBack implements writeBacker.
func (f *osFile) StartWriteBack(off, n int64) error {
	return f.syncRange(off, n, unix.SYNC_FILE_RANGE_WRITE)
}

// AwaitWriteBack implements writeBacker.
func (f *osFile) AwaitWriteBack(off, n int64) error {
	return f.syncRange(off, n, unix.SYNC_FILE_RANGE_WAIT_BEFORE|unix.SYNC_FILE_RANGE_WRITE|unix.SYNC_FILE_RANGE_WAIT_AFTER)
}

func (f *osFile) syncRange(off, n int64, flags int) error {
	for {
		switch err := unix.SyncFileRange(f.fd, off, n, flags); err {
		case unix.EINTR:
		case unix.ENOSYS, unix.ESPIPE, unix.EINVAL, unix.EOPNOTSUPP: // the filesystem does not support it
			return nil
		default:
			return err
		}
	}
}

// StartWriteBack starts to flush [off, off+n) of ino's object, so that little dirty data builds up.
// A missing object is no error.
func (s *Store) StartWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error {
	return s.writeBack(ctx, ino, func(w writeBacker) error { return w.StartWriteBack(off, n) })
}

// AwaitWriteBack returns when [off, off+n) of ino's object is flushed.
func (s *Store) AwaitWriteBack(ctx context.Context, ino metadata.Ino, off, n int64) error {
	return s.writeBack(ctx, ino, func(w writeBacker) error { return w.AwaitWriteBack(off, n) })
}

func (s *Store) writeBack(ctx context.Context, ino metadata.Ino, do func(writeBacker) error) error {
	err := s.use(ctx, ino, false, func(o *object) error {
		if w, ok := o.file.(writeBacker); ok {
			return do(w)
		}
		return nil
	})
	return wrap("write back", ino, err)
}
