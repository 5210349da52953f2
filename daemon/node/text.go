package node

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
	"github.com/bivouacfs/bivouac/metadata/cluster"
)

// MaxErrorText bounds the text of an error in the registry, in bytes.
const MaxErrorText = 16 << 10

// Clip truncates a text for the registry.
func Clip(s string) string { return s[:min(len(s), MaxErrorText)] }

// ErrorText returns the text of err for a message to a user. It keeps at most one errno text, and drops those of
// EBADMSG, EINVAL, ESTALE and EPROTO, which add nothing to the message.
func ErrorText(err error) string {
	text := err.Error()
	var no syscall.Errno
	if !errors.As(err, &no) {
		return text
	}
	rest, ok := strings.CutSuffix(text, ": "+no.Error())
	switch {
	case !ok:
		return text
	case no == syscall.EBADMSG, no == syscall.EINVAL, no == syscall.ESTALE, no == syscall.EPROTO, endsInErrno(rest):
		return rest
	}
	return text
}

// lastErrno is greater than all errnos of Linux.
const lastErrno = 134

// endsInErrno reports whether the last part of a text is an errno text.
func endsInErrno(text string) bool {
	last := text[strings.LastIndex(text, ": ")+1:]
	for no := syscall.Errno(1); no < lastErrno; no++ {
		if strings.TrimPrefix(last, " ") == no.Error() {
			return true
		}
	}
	return false
}

// Absent returns an ENOENT with a complete text, to which no errno text is added.
func Absent(format string, args ...any) error {
	return plainError{fmt.Sprintf(format, args...), syscall.ENOENT}
}

// Present returns an EEXIST with a complete text, to which no errno text is added.
func Present(format string, args ...any) error {
	return plainError{fmt.Sprintf(format, args...), syscall.EEXIST}
}

// plainError is an errno with its own text for the user, without the errno text.
type plainError struct {
	text string
	kind syscall.Errno
}

func (e plainError) Error() string { return e.text }
func (e plainError) Unwrap() error { return e.kind }

// LossText describes which data is lost with a node, what is repaired, and what to do. names is the location of the
// names of the node's files, if they have copies.
func LossText(id metadata.NodeID, host string, names cluster.Names) string {
	back := "it"
	switch {
	case names.State == cluster.NamesServed:
		return fmt.Sprintf("%s is lost: %s has taken over the names of its files; files with copies=2 are read and written as before, "+
			"other scratch files with data only there fail with EIO until it is back; its part of datasets is fetched again", host, names.Node)
	case names.State == cluster.NamesLost && names.Node != "":
		back = names.Node
	}
	if id == metadata.RootIno.Home() {
		return fmt.Sprintf("%s is lost, and with it the root of scratch: scratch is unavailable until %s is back; its part of datasets is fetched again", host, back)
	}
	return fmt.Sprintf("%s is lost: scratch files with data only there, and directories kept there with their contents, fail with EIO until %s is back; "+
		"rm -rf removes them; its part of datasets is fetched again", host, back)
}
