package source

import (
	"fmt"
	"math"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

func TypeName(mode uint32) string {
	switch mode & TypeMask {
	case TypeFIFO:
		return "a FIFO"
	case TypeSocket:
		return "a socket"
	case TypeChar, TypeBlock:
		return "a device node"
	case TypeDir:
		return "a directory"
	case TypeSymlink:
		return "a symbolic link"
	case TypeRegular:
		return "a regular file"
	}
	return fmt.Sprintf("of type %#o", mode&TypeMask)
}

// BlockSize is the unit of a tar archive, in bytes.
const BlockSize = 512

// Padded returns n rounded up to whole blocks.
func Padded(n int64) int64 { return (n + BlockSize - 1) &^ (BlockSize - 1) }

// The longest path of an item and the longest target of a link, in bytes.
const (
	MaxPath   = 1<<15 - 1
	MaxTarget = 4095
)

// CleanPath returns a name from an archive as a clean relative path, without empty or dot components. "" is the
// root.
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

// isClean reports whether CleanPath has nothing to remove.
func isClean(name string) bool {
	return name != "" && name != "." && !strings.HasSuffix(name, "/") && !strings.HasSuffix(name, "/.") &&
		!strings.HasPrefix(name, "./") && !strings.Contains(name, "//") && !strings.Contains(name, "/./")
}

// maxSeconds is the latest time that a Time can hold, in the year 2262; its negation is the earliest, in 1677.
const maxSeconds = math.MaxInt64/1_000_000_000 - 1

// ClampTime returns the Time of seconds and nanoseconds, or the nearest one if that is out of range.
func ClampTime(s, ns int64) metadata.Time {
	switch {
	case s > maxSeconds:
		s, ns = maxSeconds, 0
	case s < -maxSeconds:
		s, ns = -maxSeconds, 0
	}
	return metadata.Time(s*1_000_000_000 + ns)
}
