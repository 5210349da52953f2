package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// The causes for which a connection is closed.
var (
	errKey        = errors.New("the peer does not have the key of this job")
	errReplay     = errors.New("replayed handshake")
	errFull       = errors.New("too many connections")
	errSlow       = errors.New("frame not complete in time")
	errIdle       = errors.New("idle")
	errOtherNode  = errors.New("handshake for another node")
	errHangup     = errors.New("connection closed during the handshake")
	errTag        = errors.New("reply without a call")
	errTooMuch    = errors.New("reply with more data than requested")
	errNotAsked   = errors.New("request with a status")
	errSilent     = errors.New("no replies")
	errClosed     = errors.New("closed")
	errGivenUp    = errors.New("node given up")
	errProtection = errors.New("all nodes of a job need the same encrypt and auth: compare the site configurations")
	errDrained    = errors.New("connection drained by the peer")
	errUnsent     = errors.New("connection broken before the request was sent")
)

// errCutOff fails a call whose node was given up before any byte of the call was sent.
var errCutOff = &connectError{syscall.EHOSTDOWN, errGivenUp}

// callError is the error of a call. It wraps the errno, and is formatted only on
// demand.
type callError struct {
	op    wire.Op
	peer  metadata.NodeID
	errno syscall.Errno
	cause error // of errno; nil if the peer's handler returned it
}

func (e *callError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("%v on node %d: %v", e.op, e.peer, e.errno)
	}
	return fmt.Sprintf("%v on node %d: %v: %v", e.op, e.peer, e.cause, e.errno)
}

func (e *callError) Unwrap() error { return e.errno }

// Is makes metadata.ErrMoved match EAGAIN, for callers that retry themselves.
func (e *callError) Is(err error) bool { return err == syscall.EAGAIN && e.errno == metadata.ErrMoved }

// connectError says that no connection could be made.
type connectError struct {
	errno syscall.Errno
	cause error
}

func (e *connectError) Error() string { return e.cause.Error() }
func (e *connectError) Unwrap() error { return e.errno }

// Unanswered reports whether err says that a node was not reached or did not reply.
// The call may have taken effect.
func Unanswered(err error) bool {
	silent := []syscall.Errno{syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ETIMEDOUT, syscall.ECONNREFUSED,
		syscall.ECONNRESET, syscall.EPIPE, syscall.ESHUTDOWN}
	return slices.ContainsFunc(silent, func(no syscall.Errno) bool { return errors.Is(err, no) })
}

// ctxErrno returns the errno of a context that ended.
func ctxErrno(ctx context.Context) syscall.Errno {
	if errors.Is(ctx.Err(), context.Canceled) {
		return syscall.EINTR
	}
	return syscall.ETIMEDOUT
}

// StatusOf returns the errno of a handler's error; ok is false if it has none.
func StatusOf(err error) (status syscall.Errno, ok bool) {
	if err == nil {
		return 0, true // without the allocation of errors.As
	}
	var errno syscall.Errno
	switch {
	case errors.As(err, &errno) && errno > 0 && errno < 1<<12:
		return errno, true
	case errors.Is(err, context.DeadlineExceeded):
		return syscall.ETIMEDOUT, true
	case errors.Is(err, context.Canceled):
		return syscall.EINTR, true
	}
	return syscall.EIO, false
}
