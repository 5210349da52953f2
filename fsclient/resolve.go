package fsclient

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"github.com/bivouacfs/bivouac/metadata"
)

// Resolve follows path, slash-separated, from the directory root. It follows
// no symbolic link: a path through one is ELOOP, so that nobody is led out of
// the filesystem.
func (c *Client) Resolve(ctx context.Context, root metadata.Ino, path string) (metadata.Ino, error) {
	ino := root
	for name := range strings.SplitSeq(path, "/") {
		switch name {
		case "", ".":
			continue
		case "..":
			return 0, fmt.Errorf("%s: %w", path, syscall.EINVAL)
		}
		e, err := c.Lookup(ctx, ino, name)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		if e.Mode&syscall.S_IFMT == syscall.S_IFLNK {
			return 0, fmt.Errorf("%s: %s is a symbolic link: %w", path, name, syscall.ELOOP)
		}
		ino = e.Ino
	}
	return ino, nil
}
