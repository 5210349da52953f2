package node

import (
	"errors"
	"strings"
	"syscall"
)

// MaxErrorText bounds the text of an error in the registry, in bytes.
const MaxErrorText = 16 << 10

// Clip bounds a text for the registry.
func Clip(s string) string { return s[:min(len(s), MaxErrorText)] }

// ErrorText is the text of err for a message to a user: without the errno text of
// EBADMSG, EINVAL, ESTALE and EPROTO, which only repeats that what is named is wrong.
func ErrorText(err error) string {
	text := err.Error()
	var no syscall.Errno
	if !errors.As(err, &no) || text == no.Error() {
		return text
	}
	switch no {
	case syscall.EBADMSG, syscall.EINVAL, syscall.ESTALE, syscall.EPROTO:
		return strings.TrimSuffix(text, ": "+no.Error())
	}
	return text
}
