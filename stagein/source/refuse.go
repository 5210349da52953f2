package source

import (
	"strings"
	"syscall"
)

// RefusedError reports why a member with valid headers cannot be staged. The reader can skip its data and continue.
type RefusedError struct {
	Name string // as in the archive
	Size int64  // of its data in the archive, in bytes
	Err  error
}

// advised is an error with advice.
type advised struct {
	error
	wayOut string
}

// Advise adds to err what the user can do about it, before the errno, which tells users nothing.
func Advise(err error) error { return advised{err, ": leave it out by exclude= or on-error=skip"} }

// AdviseExclude is Advise for errors to which on-error=skip does not apply.
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

// Unwrap returns the error without the advice.
func (e advised) Unwrap() error { return e.error }

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }
