package mount

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"github.com/sirupsen/logrus"

	"github.com/bivouacfs/bivouac/metadata"
)

// maxErrno is the greatest errno that the kernel accepts.
const maxErrno = 511

// notSupported is the answer to requests that the mount does not support. It bypasses errnoOf, which turns ENOTSUP into
// EIO.
const notSupported = fuse.Status(syscall.EOPNOTSUPP)

// errnoOf returns the errno of an error, as the application gets it. An error without an errno, or with that of a
// failed connection, is EIO. So are ENOSYS and ENOTSUP: after these the kernel would never ask again.
func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
	case errors.Is(err, context.Canceled):
		return syscall.EINTR
	case errors.Is(err, context.DeadlineExceeded):
		return syscall.ETIMEDOUT
	default:
		return syscall.EIO
	}
	switch e {
	case syscall.ENOSYS, syscall.ENOTSUP, syscall.EREMOTE, syscall.EREMCHG, syscall.ENOLINK,
		syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNRESET, syscall.ECONNREFUSED,
		syscall.EPIPE, syscall.ESHUTDOWN, syscall.ENOTCONN, syscall.EBADRQC, syscall.EBADMSG, syscall.EPROTO, syscall.EMSGSIZE:
		return syscall.EIO
	}
	if e <= 0 || e > maxErrno {
		return syscall.EIO
	}
	return e
}

// fail returns the status of an error. EIO, ETIMEDOUT and ENOSPC are logged, at most one a second as a warning.
func (s *fsys) fail(o op, node uint64, err error) fuse.Status {
	e := errnoOf(err)
	if e == syscall.EAGAIN && !o.mayTryAgain() {
		e = syscall.EIO
	}
	if o == opLookup && e == syscall.ENOENT || e == syscall.ENODATA || e == syscall.ERANGE {
		return fuse.Status(e) // an answer rather than an error
	}
	s.stats.errors.Add(1)
	switch e {
	case syscall.EIO, syscall.ETIMEDOUT, syscall.ENOSPC:
	default:
		return fuse.Status(e)
	}
	s.warn(s.log.WithError(err).WithField("operation", o.String()).WithField("inode", metadata.Ino(node).String()), "file operation failed")
	return fuse.Status(e)
}

// mayTryAgain reports whether o may be answered with EAGAIN. Reads and writes may not: programs, and the Go runtime,
// would wait for the file to become ready.
func (o op) mayTryAgain() bool { return o == opSetlk || o == opSetlkw || o == opSetxattr }

// warn logs at most one line a second as a warning, the others at debug level.
func (s *fsys) warn(l *logrus.Entry, what string) {
	now := time.Now().Unix()
	if was := s.warned.Load(); was != now && s.warned.CompareAndSwap(was, now) {
		l.Warn(what)
	} else {
		l.Debug(what)
	}
}

// stale turns ENOENT for an inode that the kernel has into ESTALE: the kernel then looks the name up again, and a
// process with only a descriptor learns that the file was removed.
func stale(err error) error {
	if errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESTALE) {
		return fmt.Errorf("%w: %w", syscall.ESTALE, err)
	}
	return err
}
