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

// Clip bounds a text for the registry.
func Clip(s string) string { return s[:min(len(s), MaxErrorText)] }

// ErrorText is the text of err for a message to a user: with at most one errno text, and
// without that of EBADMSG, EINVAL, ESTALE and EPROTO, which adds nothing to the
// message.
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

// lastErrno is above all errnos of Linux.
const lastErrno = 134

// endsInErrno reports whether the last part of a text is that of an errno.
func endsInErrno(text string) bool {
	last := text[strings.LastIndex(text, ": ")+1:]
	for no := syscall.Errno(1); no < lastErrno; no++ {
		if strings.TrimPrefix(last, " ") == no.Error() {
			return true
		}
	}
	return false
}

// Absent is an ENOENT whose text says all.
func Absent(format string, args ...any) error {
	return plainError{fmt.Sprintf(format, args...), syscall.ENOENT}
}

// Present is an EEXIST whose text says all.
func Present(format string, args ...any) error {
	return plainError{fmt.Sprintf(format, args...), syscall.EEXIST}
}

// plainError is an errno whose text is for the user, without that of the errno.
type plainError struct {
	text string
	kind syscall.Errno
}

func (e plainError) Error() string { return e.text }
func (e plainError) Unwrap() error { return e.kind }

// LossText says which data is lost with a node, what is repaired, and what to do. names is where the names of its files
// are, if they have copies.
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
