package walk

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// MaxGlob bounds the paths that a pattern may match.
const MaxGlob = 100_000

// IsPattern reports whether p may match several paths: it contains a wildcard or a range {00..99}.
func IsPattern(p string) bool {
	_, _, _, ok := cutRange(p)
	return ok || strings.ContainsAny(p, "*?[")
}

// Glob returns the paths that a pattern matches, sorted: "*", "?" and "[…]" within a name as in path.Match, where
// a leading dot must be explicit, and ranges {000..127}, each number of which must exist.
func Glob(fs source.FS, pattern string) ([]string, error) {
	var all []string
	for _, p := range expand(pattern, nil) {
		found, err := glob(fs, p)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("matches nothing: %w", syscall.ENOENT)
		}
		if err == nil && len(all)+len(found) > MaxGlob {
			err = fmt.Errorf("matches more than %d names: %w", MaxGlob, syscall.E2BIG)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		all = append(all, found...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// expand expands the ranges of a pattern.
func expand(p string, to []string) []string {
	before, nums, after, ok := cutRange(p)
	if !ok {
		return append(to, p)
	}
	for _, n := range nums {
		if to = expand(before+n+after, to); len(to) > MaxGlob {
			break
		}
	}
	return to
}

// cutRange cuts the first {A..B} out of p and expands it to numbers that are as wide as A.
func cutRange(p string) (before string, nums []string, after string, ok bool) {
	for at := 0; ; {
		i := strings.IndexByte(p[at:], '{')
		if i < 0 {
			return "", nil, "", false
		}
		at += i + 1
		in, after, closed := strings.Cut(p[at:], "}")
		a, b, two := strings.Cut(in, "..")
		from, err := strconv.ParseUint(a, 10, 32)
		to, e := strconv.ParseUint(b, 10, 32)
		if !closed || !two || err != nil || e != nil || from > to || to-from > MaxGlob {
			continue
		}
		for n := from; n <= to; n++ {
			nums = append(nums, fmt.Sprintf("%0*d", len(a), n))
		}
		return p[:at-1], nums, after, true
	}
}

// glob matches one path component after another.
func glob(fs source.FS, p string) ([]string, error) {
	if _, err := path.Match(p, ""); err != nil {
		return nil, fmt.Errorf("is not a valid pattern: %w", syscall.EINVAL)
	}
	at := []string{"/"}
	for _, part := range strings.Split(strings.Trim(p, "/"), "/") {
		var next []string
		for _, dir := range at {
			names, err := matching(fs, dir, part)
			if err != nil {
				return nil, err
			}
			next = append(next, names...)
		}
		at = next
	}
	return at, nil
}

// matching returns the paths in dir that match one component of a pattern.
func matching(fs source.FS, dir, part string) ([]string, error) {
	if !strings.ContainsAny(part, "*?[") {
		full := path.Join(dir, part)
		switch _, err := fs.Lstat(full); {
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("%s: %w", full, err)
		}
		return []string{full}, nil
	}
	names, err := fs.ReadDir(dir)
	if errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	var all []string
	for _, n := range names {
		if strings.HasPrefix(n, ".") && !strings.HasPrefix(part, ".") {
			continue
		}
		if ok, _ := path.Match(part, n); ok { // glob has validated the pattern
			all = append(all, path.Join(dir, n))
		}
	}
	return all, nil
}
