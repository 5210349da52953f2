package model

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Result is the result of a step.
type Result struct {
	Err   syscall.Errno
	N     int64    // bytes transferred, or the new position
	Data  []byte   // the bytes read, a symbolic link's target, or an attribute's value
	Names []string // of a directory, or of extended attributes; sorted
	Attr  *Attr
	// Check is set by the model where the system has a choice: it returns what is wrong with the system's result.
	Check func(got Result) string
}

// Attr holds the attributes from stat. Zero times are unknown.
type Attr struct {
	Ino          uint64 // the model's own number, or the system's
	Mode         uint32 // including the type
	Nlink        uint64
	Size         int64 // -1 for a directory, whose size is meaningless
	Atime, Mtime int64 // seconds
}

// String is short; it gives the number of bytes and the first ones.
func (r Result) String() string {
	var b strings.Builder
	if r.Err != 0 {
		return unix.ErrnoName(r.Err)
	}
	fmt.Fprintf(&b, "ok n=%d", r.N)
	if r.Data != nil {
		fmt.Fprintf(&b, " %d bytes %.20q", len(r.Data), r.Data)
	}
	if r.Names != nil {
		fmt.Fprintf(&b, " %q", r.Names)
	}
	if a := r.Attr; a != nil {
		fmt.Fprintf(&b, " mode=%#o nlink=%d size=%d atime=%d mtime=%d", a.Mode, a.Nlink, a.Size, a.Atime, a.Mtime)
	}
	return b.String()
}

// differ describes how got differs from want; "" if it does not.
func differ(want, got Result) string {
	if want.Check != nil {
		return want.Check(got)
	}
	if want.Err != got.Err {
		return fmt.Sprintf("%v, want %v", got, want)
	}
	if want.Err != 0 {
		return ""
	}
	if want.N != got.N || !slices.Equal(want.Names, got.Names) {
		return fmt.Sprintf("%v, want %v", got, want)
	}
	if !bytes.Equal(want.Data, got.Data) {
		return fmt.Sprintf("%v, want %v: they differ first at %d", got, want, firstDifference(want.Data, got.Data))
	}
	if want.Attr != nil && !want.Attr.matches(*got.Attr) {
		return fmt.Sprintf("%v, want %v", got, want)
	}
	return ""
}

func firstDifference(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func (a Attr) matches(got Attr) bool {
	return a.Mode == got.Mode && a.Nlink == got.Nlink && a.Size == got.Size &&
		(a.Atime == 0 || a.Atime == got.Atime) && (a.Mtime == 0 || a.Mtime == got.Mtime)
}
