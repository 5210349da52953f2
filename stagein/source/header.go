package source

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// BlockSize is the unit of a tar archive, in bytes.
const BlockSize = 512

// Padded is n rounded up to whole blocks.
func Padded(n int64) int64 { return (n + BlockSize - 1) &^ (BlockSize - 1) }

// The member types that are told apart, by their letter in the header.
const (
	typeRegular    = '0'
	typeRegularOld = 0
	typeHard       = '1'
	typeSym        = '2'
	typeChar       = '3'
	typeBlock      = '4'
	typeDir        = '5'
	typeFIFO       = '6'
	typeContiguous = '7'
	typePAX        = 'x'
	typePAXGlobal  = 'g'
	typeLongName   = 'L'
	typeLongLink   = 'K'
	typeSparse     = 'S'
	typeVolume     = 'V'
	typeMulti      = 'M'
	typeDump       = 'D'
)

// header is the fields of a header block that count.
type header struct {
	name, link string
	mode       int64
	uid, gid   int64
	size       int64
	mtime      int64 // seconds
	typ        byte
}

// IsHeader reports whether b, one block, has a header's checksum. A block of
// data has it by chance once in some 10^9, and on purpose in a tar in a tar.
func IsHeader(b []byte) bool {
	if len(b) != BlockSize || b[148] == 0 && b[149] == 0 {
		return false
	}
	want, err := octal(b[148:156])
	if err != nil {
		return false
	}
	var unsigned, signed int64
	for i, c := range b {
		if 148 <= i && i < 156 {
			c = ' '
		}
		unsigned += int64(c)
		signed += int64(int8(c))
	}
	return want == unsigned || want == signed
}

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// parseHeader reads a block of which IsHeader is true.
func parseHeader(b []byte) (h header, err error) {
	number := func(what string, from, to int) int64 {
		n, e := numeric(b[from:to])
		if e != nil && err == nil {
			err = fmt.Errorf("%s in the header is no number: %w", what, syscall.EBADMSG)
		}
		return n
	}
	h.name, h.link, h.typ = cstring(b[0:100]), cstring(b[157:257]), b[156]
	h.mode = number("mode", 100, 108)
	h.uid, h.gid = number("uid", 108, 116), number("gid", 116, 124)
	h.size, h.mtime = number("size", 124, 136), number("mtime", 136, 148)
	if err == nil && h.size < 0 {
		err = fmt.Errorf("size %d in the header: %w", h.size, syscall.EBADMSG)
	}
	if prefix := prefixOf(b); prefix != "" {
		h.name = prefix + "/" + h.name
	}
	return h, err
}

// prefixOf is the front of a long name. GNU's headers have other things there.
func prefixOf(b []byte) string {
	if string(b[257:263]) != "ustar\x00" {
		return ""
	}
	if string(b[508:512]) == "tar\x00" { // star
		return cstring(b[345:476])
	}
	return cstring(b[345:500])
}

func cstring(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// numeric reads octal digits, or GNU's base 256 for what octal has no room for.
func numeric(b []byte) (int64, error) {
	if len(b) == 0 || b[0]&0x80 == 0 {
		return octal(b)
	}
	// Two's complement, big endian; the highest bit only marks the format.
	var invert byte
	if b[0]&0x40 != 0 {
		invert = 0xff
	}
	var x uint64
	for i, c := range b {
		c ^= invert
		if i == 0 {
			c &= 0x7f
		}
		if x>>56 > 0 {
			return 0, syscall.ERANGE
		}
		x = x<<8 | uint64(c)
	}
	if x > math.MaxInt64 {
		return 0, syscall.ERANGE
	}
	if invert == 0xff {
		return ^int64(x), nil
	}
	return int64(x), nil
}

func octal(b []byte) (int64, error) {
	s := cstring(bytes.Trim(b, " \x00"))
	if s == "" {
		return 0, nil
	}
	x, err := strconv.ParseUint(s, 8, 63)
	return int64(x), err
}

// The longest path of an item and the longest target of a link, in bytes.
const (
	MaxPath   = 1<<15 - 1
	MaxTarget = 4095
)

// CleanPath makes the path of an item of a name in an archive: relative, with
// nothing empty and no dot in it. "" is the root.
func CleanPath(name string) (string, error) {
	switch {
	case strings.HasPrefix(name, "/"):
		return "", fmt.Errorf("absolute path: %w", syscall.EINVAL)
	case strings.ContainsRune(name, 0):
		return "", fmt.Errorf("NUL in the name: %w", syscall.EINVAL)
	case len(name) > MaxPath:
		return "", fmt.Errorf("path of %d bytes: %w", len(name), syscall.ENAMETOOLONG)
	}
	clean := isClean(name)
	var parts []string
	for c := range strings.SplitSeq(name, "/") {
		switch {
		case c == "..":
			return "", fmt.Errorf("path with ..: %w", syscall.EINVAL)
		case len(c) > metadata.MaxName:
			return "", fmt.Errorf("name of %d bytes: %w", len(c), syscall.ENAMETOOLONG)
		case !clean && c != "" && c != ".":
			parts = append(parts, c)
		}
	}
	if clean {
		return name, nil
	}
	return strings.Join(parts, "/"), nil
}

// isClean reports whether there is nothing to take out of a path.
func isClean(name string) bool {
	return name != "" && name != "." && !strings.HasSuffix(name, "/") && !strings.HasSuffix(name, "/.") &&
		!strings.HasPrefix(name, "./") && !strings.Contains(name, "//") && !strings.Contains(name, "/./")
}

// maxSeconds is the latest time that is told, in the year 2262, and negated the earliest, in 1677:
// a Time is nanoseconds.
const maxSeconds = math.MaxInt64/1_000_000_000 - 1

// seconds is a Time; what does not fit becomes the nearest that does.
func seconds(s, ns int64) metadata.Time {
	switch {
	case s > maxSeconds:
		s, ns = maxSeconds, 0
	case s < -maxSeconds:
		s, ns = -maxSeconds, 0
	}
	return metadata.Time(s*1_000_000_000 + ns)
}
