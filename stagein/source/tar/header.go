package tar

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// Member types, by their letter in the header.
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

// header holds the parsed fields of a header block.
type header struct {
	name, link string
	mode       int64
	uid, gid   int64
	size       int64
	mtime      int64 // seconds
	typ        byte
}

// IsHeader reports whether b, one block, has a valid header checksum. A block of data has one by chance once in some
// 10^9 blocks, and always if it is a header of a tar within the tar.
func IsHeader(b []byte) bool {
	if len(b) != source.BlockSize || b[148] == 0 && b[149] == 0 {
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

func isZero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }

// parseHeader parses a block for which IsHeader is true.
func parseHeader(b []byte) (h header, err error) {
	number := func(what string, from, to int) int64 {
		n, e := numeric(b[from:to])
		if e != nil && err == nil {
			err = fmt.Errorf("%s in the header is not a number: %w", what, syscall.EBADMSG)
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

// prefixOf returns the first part of a long name. GNU headers have other fields there.
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

// numeric parses octal digits, or GNU's base 256 for larger numbers.
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
