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

// maxErrno is the greatest number that the kernel takes for an error.
const maxErrno = 511

// notSupported answers what the mount does not have. It does not go through
// errnoOf, which would take it for an accident.
const notSupported = fuse.Status(syscall.EOPNOTSUPP)

// errnoOf is the errno of an error, as the application gets it. An error that
// has none, or one that only says how a node could not be reached, is EIO; and
// so are ENOSYS and ENOTSUP, because the kernel would never ask again.
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
	case syscall.ENOSYS, syscall.ENOTSUP,
		syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ECONNRESET, syscall.ECONNREFUSED,
		syscall.EPIPE, syscall.ESHUTDOWN, syscall.ENOTCONN, syscall.EBADRQC, syscall.EBADMSG, syscall.EPROTO, syscall.EMSGSIZE:
		return syscall.EIO
	}
	if e <= 0 || e > maxErrno {
		return syscall.EIO
	}
	return e
}

// failed is the status of an error. Those that somebody must look at are
// logged, one a second as a warning.
func (s *fsys) failed(o op, node uint64, err error) fuse.Status {
	e := errnoOf(err)
	if o == opLookup && e == syscall.ENOENT || e == syscall.ENODATA || e == syscall.ERANGE {
		return fuse.Status(e) // an answer rather than an error
	}
	s.stats.errors.Add(1)
	switch e {
	case syscall.EIO, syscall.ETIMEDOUT, syscall.ENOSPC:
	default:
		return fuse.Status(e)
	}
	s.complain(s.log.WithError(err).WithField("operation", o.String()).WithField("inode", metadata.Ino(node).String()), "a request failed")
	return fuse.Status(e)
}

// complain logs one line a second as a warning.
func (s *fsys) complain(l *logrus.Entry, what string) {
	now := time.Now().Unix()
	if was := s.warned.Load(); was != now && s.warned.CompareAndSwap(was, now) {
		l.Warn(what)
	} else {
		l.Debug(what)
	}
}

// held turns ENOENT for an inode that the kernel has into ESTALE: then the
// kernel looks the name up again, and who has only a descriptor learns that
// the file is gone.
func held(err error) error {
	if errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ESTALE) {
		return fmt.Errorf("%w: %w", syscall.ESTALE, err)
	}
	return err
}
