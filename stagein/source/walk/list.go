package walk

import (
	"errors"
	"fmt"
	"github.com/bivouacfs/bivouac/stagein/source"
	"strings"
	"syscall"
)

// maxList is the most bytes of a file that lists paths.
const maxList = 1 << 30

// ReadList reads a file that lists paths, one to a line, or each ended by a NUL
// if there is any. Empty lines are none; "./" in front and a slash at the end
// are left out.
func ReadList(fs source.FS, name string) (map[string]bool, error) {
	text, err := readText(fs, name)
	if err != nil {
		return nil, err
	}
	return parseList(name, text)
}

// ReadLines is what ReadList reads, in its order.
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
		return "", fmt.Errorf("%s: a list of %d bytes, %d is the most: %w", name, info.Size, maxList, syscall.EFBIG)
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
		return nil, fmt.Errorf("%s: lists nothing: %w", name, syscall.EINVAL)
	}
	return paths, nil
}
