package rpc

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/bivouacfs/bivouac/datapath/wire"
	"github.com/bivouacfs/bivouac/metadata"
)

// The causes for which a connection is cut.
var (
	errKey       = errors.New("the peer does not have this job's key")
	errReplay    = errors.New("replayed handshake")
	errSlow      = errors.New("the peer is too slow with a frame")
	errIdle      = errors.New("idle")
	errOtherNode = errors.New("the peer wants another node")
	errHangup    = errors.New("the peer hung up in the handshake")
	errTag       = errors.New("reply to a call that was not made")
	errTooMuch   = errors.New("reply with more data than was asked for")
	errNotAsked  = errors.New("request with a status")
	errSilent    = errors.New("the peer answers nothing")
	errClosed    = errors.New("closed")
	errGivenUp   = errors.New("the node is given up")
	errDrained   = errors.New("the peer has given this connection up")
	errUnsent    = errors.New("the connection broke before the request was sent")
)

// errCutOff is a call of which nothing was sent before its node was given up.
var errCutOff = &connectError{syscall.EHOSTDOWN, errGivenUp}

// callError is an error of a call: it says which op on which node, and wraps
// the errno. It is formatted only when somebody looks.
type callError struct {
	op    wire.Op
	peer  metadata.NodeID
	errno syscall.Errno
	cause error // what made errno, if it was not the peer's handler
}

func (e *callError) Error() string {
	if e.cause == nil {
		return fmt.Sprintf("%v on node %d: %v", e.op, e.peer, e.errno)
	}
	return fmt.Sprintf("%v on node %d: %v: %v", e.op, e.peer, e.cause, e.errno)
}

func (e *callError) Unwrap() error { return e.errno }

// connectError is a node to which no connection could be made.
type connectError struct {
	errno syscall.Errno
	cause error
}

func (e *connectError) Error() string { return e.cause.Error() }
func (e *connectError) Unwrap() error { return e.errno }

// Unanswered reports whether err says that a node could not be asked, or that its
// answer has not come. The call may have taken effect.
func Unanswered(err error) bool {
	for _, no := range []syscall.Errno{syscall.EHOSTDOWN, syscall.EHOSTUNREACH, syscall.ETIMEDOUT, syscall.ECONNREFUSED,
		syscall.ECONNRESET, syscall.EPIPE, syscall.ESHUTDOWN} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// ctxErrno is the errno of a context that ended.
func ctxErrno(ctx context.Context) syscall.Errno {
	if errors.Is(ctx.Err(), context.Canceled) {
		return syscall.EINTR
	}
	return syscall.ETIMEDOUT
}

// StatusOf is the errno of a handler's error; ok is false where it has none.
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
