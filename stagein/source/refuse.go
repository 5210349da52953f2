package source

import (
	"strings"
	"syscall"
)

// RefusedError is why a member cannot be staged whose headers are in order, so
// that who reads can go over its data.
type RefusedError struct {
	Name string // as the archive has it
	Size int64  // of its data in the archive, in bytes
	Err  error
}

// advised is why something cannot be staged, with what can be done about it.
type advised struct {
	error
	wayOut string
}

// Advise adds to err what can be done about it: before the kind of error, if that tells
// a user nothing.
func Advise(err error) error { return advised{err, ": leave it out by exclude= or on-error=skip"} }

// AdviseExclude is Advise where what is bad cannot be left out just for that.
func AdviseExclude(err error) error { return advised{err, ": leave it out by exclude="} }

// Error implements error.
func (e advised) Error() string {
	for _, no := range []syscall.Errno{syscall.EINVAL, syscall.EBADMSG} {
		if text, ok := strings.CutSuffix(e.error.Error(), ": "+no.Error()); ok {
			return text + e.wayOut + ": " + no.Error()
		}
	}
	return e.error.Error() + e.wayOut
}

// Unwrap is what is wrong.
func (e advised) Unwrap() error { return e.error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap is what is wrong.
func (e *RefusedError) Unwrap() error { return e.Err }
