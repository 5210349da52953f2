package walk

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/stagein/source"
)

// maxList is the size limit of a file that lists paths, in bytes.
const maxList = 1 << 30

// ReadList reads a file that lists paths, one per line, or NUL-terminated if it contains a NUL. Empty lines are
// ignored, as are a leading "./" and a trailing slash.
func ReadList(fs source.FS, name string) (map[string]bool, error) {
	text, err := readText(fs, name)
	if err != nil {
		return nil, err
	}
	return parseList(name, text)
}

// ReadLines is ReadList that keeps the order.
func ReadLines(fs source.FS, name string) ([]string, error) {
	text, err := readText(fs, name)
	if err != nil {
		return nil, err
	}
	return parseLines(name, text)
}

func readText(fs source.FS, name string) (string, error) {
	at, info, err := source.Resolve(fs, name)
	if err != nil {
		return "", err
	}
	if info.Size > maxList {
		return "", fmt.Errorf("%s: a list of %d bytes, at most %d are supported: split it: %w", name, info.Size, maxList, syscall.EFBIG)
	}
	f, err := fs.Open(at)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	b := make([]byte, info.Size)
	if err := errors.Join(source.ReadFull(f, name, b, 0), f.Close()); err != nil {
		return "", err
	}
	return string(b), nil
}

func parseList(name, text string) (map[string]bool, error) {
	lines, err := parseLines(name, text)
	if err != nil {
		return nil, err
	}
	paths := make(map[string]bool, len(lines))
	for _, l := range lines {
		paths[l] = true
	}
	return paths, nil
}

func parseLines(name, text string) ([]string, error) {
	sep := "\n"
	if strings.Contains(text, "\x00") {
		sep = "\x00"
	}
	var paths []string
	for i, line := range strings.Split(text, sep) {
		if sep == "\n" {
			line = strings.TrimSuffix(line, "\r")
		}
		if line == "" {
			continue
		}
		p, err := source.CleanPath(line)
		if err != nil {
			return nil, fmt.Errorf("%s, entry %d: %q: %w: write paths relative to the source", name, i+1, line, err)
		}
		paths = append(paths, p)
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: the list is empty: %w", name, syscall.EINVAL)
	}
	return paths, nil
}
